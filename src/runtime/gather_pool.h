#pragma once
// Memory for gathered units, reused: freed blocks are kept for the next unit of
// their size, because refilling fresh pages costs more than the copy itself.

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace fsdp {

/// A block of `bytes` at `writable`; `readable` is the same memory, on the CPU
/// through a read-only mapping.
class GatherBlock {
 public:
  virtual ~GatherBlock() = default;
  std::byte* writable = nullptr;
  const std::byte* readable = nullptr;
  std::size_t bytes = 0;
  /// Names a parameter's bytes for the fault handler (CPU only).
  virtual void name_range(std::size_t, std::size_t, std::string) {}
};

class GatherPool {
 public:
  explicit GatherPool(c10::Device device) : device_(device) {}

  std::unique_ptr<GatherBlock> take(std::size_t bytes);
  void give_back(std::unique_ptr<GatherBlock> block);

 private:
  c10::Device device_;
  std::map<std::size_t, std::vector<std::unique_ptr<GatherBlock>>> free_;
};

} // namespace fsdp
