#include "runtime/shared_memory_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <utility>

#include "comm/reduce_kernels.h"
#include "fsdp/memory.h"
#include "runtime/scalar_type.h"
#include "runtime/stopwatch.h"

namespace fsdp {

namespace {

/// The region that holds a gathered group.
class RegionSlot final : public EngineSlot {
 public:
  RegionSlot(std::shared_ptr<SharedRegion> shared, int num_ranks)
      : region(std::move(shared)),
        counted_bytes(static_cast<std::int64_t>(region->size()) / num_ranks) {
    count_tensor_bytes(counted_bytes);
  }
  ~RegionSlot() override { count_tensor_bytes(-counted_bytes); }

  const std::shared_ptr<SharedRegion> region;
  const std::int64_t counted_bytes;
};

SharedRegion& region_of(const ParamGroup& group) {
  return *static_cast<RegionSlot&>(*group.slot).region;
}

/// Bytes before the gradients in a message: one flag per parameter.
std::size_t header_bytes(const ParamGroup& group) {
  return (group.params.size() + 63) / 64 * 64;
}

at::Tensor view_of(
    std::byte* data,
    c10::IntArrayRef sizes,
    c10::ScalarType dtype) {
  return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype));
}

} // namespace

SharedMemoryEngine::SharedMemoryEngine(ProcessGroup group)
    : ShardEngine(std::move(group)),
      memory_(*communicator().host_memory()),
      epoch_(communicator().epoch()) {}

SharedMemoryEngine::~SharedMemoryEngine() {
  if (slab_) {
    count_tensor_bytes(
        -static_cast<std::int64_t>(slab_->size()) / communicator().size());
  }
}

void SharedMemoryEngine::add(ParamGroup& group) {
  group.lay_out();
  group.slot.reset();
  auto region = memory_.allocate(group.gathered_bytes, group.describe());
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    region->name_range(
        group.offsets[i],
        group.params[i]->compute_bytes(),
        group.params[i]->describe());
  }
  group.slot =
      std::make_unique<RegionSlot>(std::move(region), communicator().size());
  std::size_t grad_bytes = header_bytes(group);
  for (const auto& param : group.params) {
    const auto element = std::max(
        c10::elementSize(param->compute_dtype()),
        c10::elementSize(param->reduce_dtype()));
    grad_bytes += static_cast<std::size_t>(param->full_numel()) * element + 64;
  }
  require_slab(grad_bytes);
}

void SharedMemoryEngine::require_slab(std::size_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) {
    return;
  }
  constexpr std::size_t kPage = 4096;
  slot_bytes_ = (slot_bytes + kPage - 1) / kPage * kPage;
  const int num_ranks = communicator().size();
  if (slab_) {
    count_tensor_bytes(-static_cast<std::int64_t>(slab_->size()) / num_ranks);
  }
  slab_.reset();
  slab_ = memory_.allocate(
      slot_bytes_ * HostMemory::kStreamDepth *
          static_cast<std::size_t>(num_ranks),
      "gradients");
  count_tensor_bytes(static_cast<std::int64_t>(slab_->size()) / num_ranks);
}

void SharedMemoryEngine::enter(
    const Request& request,
    std::span<ParamGroup* const> groups) {
  communicator().meet(request);
  c10::AutoGradMode grad_off(false);
  for (ParamGroup* group : groups) {
    std::byte* base = region_of(*group).writable();
    for (std::size_t i = 0; i < group->params.size(); ++i) {
      const ShardedParam& param = *group->params[i];
      const auto dtype = param.compute_dtype();
      const auto row_bytes = static_cast<std::size_t>(param.row_numel()) *
          c10::elementSize(dtype);
      const auto begin = static_cast<std::size_t>(param.rows().begin);
      view_of(
          base + group->offsets[i] + begin * row_bytes,
          param.local().sizes(),
          dtype)
          .copy_(param.local());
    }
  }
  Request published = request;
  published.meeting = Meeting::kPublished;
  communicator().meet(published);
}

void SharedMemoryEngine::start_unshard(ParamGroup&) {}

void SharedMemoryEngine::finish_unshard(
    ParamGroup& group,
    std::span<const ShardedParam::GradHooks> hooks) {
  const std::byte* base = region_of(group).readable();
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    group.params[i]->to_unsharded(base + group.offsets[i], hooks[i]);
  }
}

void SharedMemoryEngine::reshard(ParamGroup& group) {
  for (const auto& param : group.params) {
    if (param->is_unsharded()) {
      param->to_sharded();
    }
  }
}

SharedMemoryEngine::GradLayout SharedMemoryEngine::lay_out_grads(
    const ParamGroup& group,
    std::size_t element_size) const {
  GradLayout layout;
  layout.bytes = header_bytes(group);
  for (const auto& param : group.params) {
    layout.offsets.push_back(layout.bytes);
    const auto bytes =
        static_cast<std::size_t>(param->full_numel()) * element_size;
    layout.bytes += (bytes + 63) / 64 * 64;
  }
  return layout;
}

std::size_t SharedMemoryEngine::slot_offset(
    int rank,
    std::size_t place) const {
  return slot_bytes_ *
      (static_cast<std::size_t>(rank) * HostMemory::kStreamDepth + place);
}

void SharedMemoryEngine::start_reduce(ParamGroup& group) {
  if (communicator().epoch() != epoch_) {
    epoch_ = communicator().epoch();
    next_place_ = 0;
  }
  const auto place = next_place_;
  next_place_ = (next_place_ + 1) % HostMemory::kStreamDepth;
  const ReductionTypes types = reduction_types(group);
  memory_.wait_post_slot();
  {
    const Stopwatch stopwatch(reduce_time_);
    c10::AutoGradMode grad_off(false);
    const auto layout = lay_out_grads(group, c10::elementSize(types.wire));
    std::byte* slot =
        slab_->writable() + slot_offset(communicator().rank(), place);
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const at::Tensor grad = group.params[i]->release_full_grad();
      slot[i] = static_cast<std::byte>(grad.defined());
      if (grad.defined()) {
        view_of(slot + layout.offsets[i], grad.sizes(), types.wire).copy_(grad);
      }
    }
  }
  const auto number = memory_.post(
      {.meeting = Meeting::kGradients,
       .dtype = to_dtype(types.wire),
       .op = ReduceOp::kAvg,
       .numel = static_cast<std::int64_t>(group.params.size()),
       .subject = group.describe()});
  posted_.push_back({&group, number, place, types});
  group.has_unreduced_backward = false;
  if (posted_.size() > 1) {
    finish_oldest();
  }
}

void SharedMemoryEngine::finish_oldest() {
  const Posted posted = posted_.front();
  posted_.pop_front();
  memory_.await(posted.number);
  {
    const Stopwatch stopwatch(reduce_time_);
    sum_own_rows(posted);
  }
  memory_.consume(posted.number);
}

void SharedMemoryEngine::sum_own_rows(const Posted& posted) {
  c10::InferenceMode inference_off(false);
  c10::AutoGradMode grad_off(false);
  const ParamGroup& group = *posted.group;
  const int num_ranks = communicator().size();
  const auto element = c10::elementSize(posted.types.wire);
  const auto layout = lay_out_grads(group, element);
  std::vector<const void*> inputs(static_cast<std::size_t>(num_ranks));
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    ShardedParam& param = *group.params[i];
    const auto own_offset = static_cast<std::size_t>(param.rows().begin) *
        static_cast<std::size_t>(param.row_numel()) * element;
    bool any = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::byte* slot =
          slab_->readable() + slot_offset(rank, posted.place);
      const bool present = slot[i] != std::byte{0};
      inputs[static_cast<std::size_t>(rank)] =
          present ? slot + layout.offsets[i] + own_offset : nullptr;
      any = any || present;
    }
    if (!any) {
      continue;
    }
    auto sizes = param.full_sizes();
    sizes[0] = param.rows().length;
    at::Tensor mean = at::empty(
        sizes, at::TensorOptions().dtype(posted.types.result));
    if (mean.numel() > 0) {
      reduce_in_rank_order(
          inputs,
          to_dtype(posted.types.wire),
          mean.mutable_data_ptr(),
          to_dtype(posted.types.result),
          mean.numel(),
          ReduceOp::kAvg,
          num_ranks);
    }
    param.set_reduced_grad(std::move(mean));
  }
}

void SharedMemoryEngine::finish_backward(const std::string& unit) {
  while (!posted_.empty()) {
    finish_oldest();
  }
  communicator().meet({.meeting = Meeting::kBackwardEnd, .subject = unit});
}

void SharedMemoryEngine::abandon() noexcept {
  posted_.clear();
}

} // namespace fsdp
