#include "runtime/gather_pool.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "runtime/counted_region.h"

namespace fsdp {

namespace {

class MappedBlock final : public GatherBlock {
 public:
  MappedBlock(std::size_t size, const std::string& label)
      : region_(
            SharedRegion::create(size, label),
            MemoryComponent::kGathered,
            /*rank=*/0,
            /*num_ranks=*/1) {
    writable = region_->writable();
    readable = region_->readable();
    bytes = size;
  }
  void name_range(
      std::size_t offset, std::size_t length, std::string name) override {
    region_->name_range(offset, length, std::move(name));
  }
  void clear_names() override { region_->clear_names(); }

 private:
  CountedRegion region_;
};

class DeviceBlock final : public GatherBlock {
 public:
  DeviceBlock(std::size_t size, c10::Device device) {
    c10::InferenceMode inference_off(false);
    const MemoryScope scope(MemoryComponent::kGathered);
    memory_ = at::empty(
        {static_cast<std::int64_t>(size)},
        at::TensorOptions().dtype(c10::kByte).device(device));
    writable = static_cast<std::byte*>(memory_.mutable_data_ptr());
    readable = writable;
    bytes = size;
  }

 private:
  at::Tensor memory_;
};

} // namespace

std::unique_ptr<GatherBlock> GatherPool::take(
    std::size_t bytes, const std::string& label) {
  std::unique_ptr<GatherBlock> block;
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& candidate) {
        return candidate->bytes == bytes;
      });
  if (found != free_.end()) {
    block = std::move(*found);
    free_.erase(found);
    free_bytes_ -= bytes;
  } else if (device_.is_cpu()) {
    block = std::make_unique<MappedBlock>(bytes, label);
  } else {
    block = std::make_unique<DeviceBlock>(bytes, device_);
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  drop_surplus();
  return block;
}

void GatherPool::give_back(std::unique_ptr<GatherBlock> block) {
  block->clear_names();
  used_bytes_ -= block->bytes;
  free_bytes_ += block->bytes;
  free_.push_front(std::move(block));
  drop_surplus();
}

void GatherPool::drop_surplus() {
  while (used_bytes_ + free_bytes_ > peak_bytes_) {
    free_bytes_ -= free_.back()->bytes;
    free_.pop_back();
  }
}

} // namespace fsdp
