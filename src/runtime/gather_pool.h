#pragma once
// Memory for gathered units, reused, because refilling fresh pages costs more
// than the copy itself. It never holds more than was in use at once.

#include <c10/core/Device.h>

#include <cstddef>
#include <list>
#include <memory>
#include <string>

namespace fsdp {

/// A block of `bytes` at `writable`; `readable` is the same memory, on the CPU
/// through a read-only mapping.
class GatherBlock {
 public:
  virtual ~GatherBlock() = default;
  std::byte* writable = nullptr;
  const std::byte* readable = nullptr;
  std::size_t bytes = 0;
  /// Names a parameter's bytes for the fault handler (CPU only), until the
  /// block is given back.
  virtual void name_range(std::size_t, std::size_t, std::string) {}
  virtual void clear_names() {}
};

class GatherPool {
 public:
  explicit GatherPool(c10::Device device) : device_(device) {}

  /// `label`: what it is for, named if there is no memory (CommError).
  std::unique_ptr<GatherBlock> take(
      std::size_t bytes, const std::string& label);
  void give_back(std::unique_ptr<GatherBlock> block);

 private:
  void drop_surplus();

  c10::Device device_;
  std::list<std::unique_ptr<GatherBlock>> free_; ///< the last used one first
  std::size_t free_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0; ///< of used_bytes_
};

} // namespace fsdp
