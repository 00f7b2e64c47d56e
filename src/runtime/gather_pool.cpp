#include "runtime/gather_pool.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "fsdp/host_memory.h"
#include "fsdp/memory.h"

namespace fsdp {

namespace {

class MappedBlock final : public GatherBlock {
 public:
  explicit MappedBlock(std::size_t size)
      : region_(SharedRegion::create(size, "gathered parameters")) {
    writable = region_->writable();
    readable = region_->readable();
    bytes = size;
    count_tensor_bytes(static_cast<std::int64_t>(bytes));
  }
  ~MappedBlock() override {
    count_tensor_bytes(-static_cast<std::int64_t>(bytes));
  }
  void name_range(std::size_t offset, std::size_t length, std::string name)
      override {
    region_->name_range(offset, length, std::move(name));
  }

 private:
  std::shared_ptr<SharedRegion> region_;
};

class DeviceBlock final : public GatherBlock {
 public:
  DeviceBlock(std::size_t size, c10::Device device) {
    c10::InferenceMode inference_off(false);
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

std::unique_ptr<GatherBlock> GatherPool::take(std::size_t bytes) {
  auto& blocks = free_[bytes];
  if (!blocks.empty()) {
    auto block = std::move(blocks.back());
    blocks.pop_back();
    return block;
  }
  if (device_.is_cpu()) {
    return std::make_unique<MappedBlock>(bytes);
  }
  return std::make_unique<DeviceBlock>(bytes, device_);
}

void GatherPool::give_back(std::unique_ptr<GatherBlock> block) {
  const std::size_t bytes = block->bytes;
  free_[bytes].push_back(std::move(block));
}

} // namespace fsdp
