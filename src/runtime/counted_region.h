#pragma once
// A shared region whose bytes are in the count of tensor memory.

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/host_memory.h"
#include "runtime/memory_account.h"

namespace fsdp {

/// Each of the ranks that share it counts its part; over all ranks every byte
/// counts once.
class CountedRegion {
 public:
  CountedRegion() = default;
  CountedRegion(
      std::shared_ptr<SharedRegion> region,
      MemoryComponent component,
      int rank,
      int num_ranks)
      : region_(std::move(region)),
        counted_(component, part(region_->size(), rank, num_ranks)) {}

  SharedRegion& operator*() const { return *region_; }
  SharedRegion* operator->() const { return region_.get(); }

 private:
  static std::int64_t part(std::size_t bytes, int rank, int num_ranks) {
    const auto up_to = [&](int r) {
      return static_cast<std::int64_t>(bytes) * r / num_ranks;
    };
    return up_to(rank + 1) - up_to(rank);
  }

  std::shared_ptr<SharedRegion> region_;
  CountedBytes counted_;
};

} // namespace fsdp
