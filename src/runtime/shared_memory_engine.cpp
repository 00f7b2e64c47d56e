#include "runtime/shared_memory_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "comm/c10d/scalar_type.h"
#include "comm/reduce_kernels.h"
#include "core/align.h"
#include "runtime/stopwatch.h"

namespace fsdp {

namespace {

constexpr std::size_t kAlignment = 64; // for vector loads

/// A group's gathered memory.
struct RegionSlot final : EngineSlot {
  explicit RegionSlot(CountedRegion counted) : region(std::move(counted)) {}
  CountedRegion region;
};

SharedRegion& region_of(const ParamGroup& group) {
  return *static_cast<RegionSlot&>(*group.slot).region;
}

/// Bytes before the gradients in a message: one flag per parameter.
std::size_t header_bytes(const ParamGroup& group) {
  return align_up(group.params.size(), kAlignment);
}

/// Where the gradients of one message lie.
struct GradLayout {
  std::vector<std::size_t> offsets; ///< from the message's begin
  std::size_t bytes = 0;            ///< of the whole message
};

GradLayout lay_out_grads(const ParamGroup& group, std::size_t element_size) {
  GradLayout layout;
  layout.bytes = header_bytes(group);
  for (const auto& param : group.params) {
    layout.offsets.push_back(layout.bytes);
    const auto bytes =
        static_cast<std::size_t>(param->full_numel()) * element_size;
    layout.bytes += align_up(bytes, kAlignment);
  }
  return layout;
}

at::Tensor view_of(
    std::byte* data, c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype));
}

} // namespace

SharedMemoryEngine::SharedMemoryEngine(ProcessGroup group)
    : ShardEngine(std::move(group)),
      memory_(*communicator().host_memory()),
      epoch_(communicator().epoch()) {}

SharedMemoryEngine::~SharedMemoryEngine() = default;

void SharedMemoryEngine::add(ParamGroup& group) {
  group.lay_out();
  group.slot.reset();
  CountedRegion region = allocate(
      group.gathered_bytes, group.describe(), MemoryComponent::kGathered);
  std::size_t largest_element = 0;
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const ShardedParam& param = *group.params[i];
    region->name_range(
        group.offsets[i], param.compute_bytes(), param.describe());
    largest_element = std::max(
        {largest_element,
         c10::elementSize(param.compute_dtype()),
         c10::elementSize(param.reduce_dtype())});
  }
  require_slab(lay_out_grads(group, largest_element).bytes);
  group.slot = std::make_unique<RegionSlot>(std::move(region));
}

CountedRegion SharedMemoryEngine::allocate(
    std::size_t bytes, const std::string& label, MemoryComponent component) {
  return {
      memory_.allocate(bytes, label),
      component,
      communicator().rank(),
      communicator().size()};
}

void SharedMemoryEngine::require_slab(std::size_t message_bytes) {
  if (message_bytes <= place_bytes_) {
    return;
  }
  while (!posted_.empty()) {
    finish_oldest(); // it lies in the slab that is replaced
  }
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes = align_up(message_bytes, kPage);
  slab_ = allocate(
      bytes * HostMemory::kStreamDepth *
          static_cast<std::size_t>(communicator().size()),
      "gradients",
      MemoryComponent::kReduction);
  place_bytes_ = bytes;
}

void SharedMemoryEngine::publish(
    const Request& request, std::span<ParamGroup* const> groups) {
  for (ParamGroup* group : groups) {
    std::byte* base = region_of(*group).writable();
    for (std::size_t i = 0; i < group->params.size(); ++i) {
      group->params[i]->copy_rows_to(base + group->offsets[i], c10::kCPU);
    }
  }
  Request published = request;
  published.meeting = Meeting::kPublished;
  communicator().meet(published);
}

void SharedMemoryEngine::start_unshard(ParamGroup&) {}

void SharedMemoryEngine::finish_unshard(ParamGroup& group) {
  const std::byte* base = region_of(group).readable();
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    group.params[i]->to_unsharded(base + group.offsets[i]);
  }
}

void SharedMemoryEngine::reshard(ParamGroup& group) {
  for (const auto& param : group.params) {
    if (param->is_unsharded()) {
      param->to_sharded();
    }
  }
}

std::size_t SharedMemoryEngine::place_offset(
    int rank, std::size_t place) const {
  return place_bytes_ *
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
    std::byte* message =
        slab_->writable() + place_offset(communicator().rank(), place);
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const at::Tensor grad = group.params[i]->release_full_grad();
      message[i] = static_cast<std::byte>(grad.defined());
      if (grad.defined()) {
        view_of(message + layout.offsets[i], grad.sizes(), types.wire)
            .copy_(grad);
      }
    }
  }
  const auto number = memory_.post(
      {.meeting = Meeting::kGradients,
       .dtype = to_dtype(types.wire),
       .op = ReduceOp::kAvg,
       .tree = group.tree,
       .numel = group.numel(),
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
  const MemoryScope scope(MemoryComponent::kGradients);
  const ParamGroup& group = *posted.group;
  const int num_ranks = communicator().size();
  const auto element = c10::elementSize(posted.types.wire);
  const auto layout = lay_out_grads(group, element);
  std::vector<const void*> inputs(static_cast<std::size_t>(num_ranks));
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    ShardedParam& param = *group.params[i];
    const auto own_offset = static_cast<std::size_t>(param.rows().begin) *
                            static_cast<std::size_t>(param.row_numel()) *
                            element;
    bool any = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::byte* message =
          slab_->readable() + place_offset(rank, posted.place);
      const bool present = message[i] != std::byte{0};
      inputs[static_cast<std::size_t>(rank)] =
          present ? message + layout.offsets[i] + own_offset : nullptr;
      any = any || present;
    }
    if (!any) {
      continue;
    }
    auto sizes = param.full_sizes();
    sizes[0] = param.rows().length;
    at::Tensor mean =
        at::empty(sizes, at::TensorOptions().dtype(posted.types.result));
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

void SharedMemoryEngine::finish_backward(const ParamGroup& root) {
  while (!posted_.empty()) {
    finish_oldest();
  }
  communicator().meet(
      {.meeting = Meeting::kBackwardEnd,
       .tree = root.tree,
       .subject = root.describe()});
}

void SharedMemoryEngine::abandon() noexcept {
  posted_.clear();
}

} // namespace fsdp
