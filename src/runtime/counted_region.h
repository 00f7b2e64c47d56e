#pragma once
// A shared region whose bytes are in the count of tensor memory.

#include <cstdint>
#include <memory>
#include <utility>

#include "comm/host_memory.h"
#include "fsdp/memory.h"

namespace fsdp {

/// Each of the ranks that share it counts its part.
class CountedRegion {
 public:
  CountedRegion() = default;
  CountedRegion(std::shared_ptr<SharedRegion> region, int num_ranks)
      : region_(std::move(region)),
        counted_bytes_(static_cast<std::int64_t>(region_->size()) / num_ranks) {
    count_tensor_bytes(counted_bytes_);
  }
  CountedRegion(CountedRegion&& other) noexcept
      : region_(std::move(other.region_)),
        counted_bytes_(std::exchange(other.counted_bytes_, 0)) {}
  CountedRegion& operator=(CountedRegion&& other) noexcept {
    std::swap(region_, other.region_);
    std::swap(counted_bytes_, other.counted_bytes_);
    return *this;
  }
  ~CountedRegion() { count_tensor_bytes(-counted_bytes_); }

  SharedRegion& operator*() const { return *region_; }
  SharedRegion* operator->() const { return region_.get(); }

 private:
  std::shared_ptr<SharedRegion> region_;
  std::int64_t counted_bytes_ = 0;
};

} // namespace fsdp
