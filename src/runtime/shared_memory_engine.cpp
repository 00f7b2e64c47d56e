#include "runtime/shared_memory_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "comm/c10d/scalar_type.h"
#include "comm/reduce_kernels.h"
#include "core/align.h"
#include "fsdp/error.h"
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

/// In a message's header, of a parameter that has no gradient on the rank.
constexpr std::uint64_t kNoGradient = ~std::uint64_t{0};

/// At the message's begin: where in the rank's memory each gradient is.
std::size_t header_bytes(const ParamGroup& group) {
  return align_up(group.params.size() * sizeof(std::uint64_t), kAlignment);
}

std::uint64_t* header_of(std::byte* message) {
  return reinterpret_cast<std::uint64_t*>(message);
}

/// The most that the gradients of a group take, in a message, or in an arena
/// where each has a header.
std::size_t gradient_bytes(const ParamGroup& group) {
  std::size_t bytes = 0;
  for (const auto& param : group.params) {
    const auto element = std::max(
        c10::elementSize(param->compute_dtype()),
        c10::elementSize(param->reduce_dtype()));
    bytes += GradientArena::kHeaderBytes +
             align_up(
                 static_cast<std::size_t>(param->full_numel()) * element,
                 kAlignment);
  }
  return bytes;
}

at::Tensor view_of(
    std::byte* data, c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype));
}

} // namespace

SharedMemoryEngine::SharedMemoryEngine(ProcessGroup group)
    : ShardEngine(std::move(group)),
      memory_(*communicator().host_memory()),
      epoch_(communicator().epoch()) {
  try {
    install_counting_allocator(); // it also serves the arena
  } catch (const Error&) {
    // Another one has priority: gradients are copied, all else is the same.
  }
}

SharedMemoryEngine::~SharedMemoryEngine() = default;

void SharedMemoryEngine::add(ParamGroup& group) {
  group.lay_out();
  group.slot.reset();
  CountedRegion region(
      memory_.allocate(group.gathered_bytes, group.describe()),
      MemoryComponent::kGathered,
      communicator().rank(),
      communicator().size());
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const ShardedParam& param = *group.params[i];
    region->name_range(
        group.offsets[i], param.compute_bytes(), param.describe());
    expected_->sizes.insert(param.compute_bytes());
  }
  reserve_gradient_memory(group);
  group.slot = std::make_unique<RegionSlot>(std::move(region));
}

// Note [Gradient memory]: of each rank, kStreamDepth places for messages, and
// the arena. While a unit's gradients are computed, those of the two units
// before it may still be read, and the root's come from the backward's begin to
// its end: the four largest units fit at once, and one more for what has a
// gradient's size by chance. Pages that nothing is written to cost nothing.
void SharedMemoryEngine::reserve_gradient_memory(const ParamGroup& group) {
  constexpr std::size_t kUnitsAtOnce = 4;
  constexpr std::size_t kPage = 4096;
  largest_units_.push_back(gradient_bytes(group));
  std::ranges::sort(largest_units_, std::greater());
  largest_units_.resize(std::min(largest_units_.size(), kUnitsAtOnce));
  const std::size_t place = align_up(
      std::max(place_bytes_, header_bytes(group) + largest_units_.front()),
      kPage);
  const std::size_t arena = align_up(
      std::accumulate(
          largest_units_.begin(), largest_units_.end(), largest_units_.front()),
      kPage);
  if (place <= place_bytes_ && arena <= arena_bytes_) {
    return;
  }
  while (!posted_.empty()) {
    finish_oldest(); // it lies in the memory that is replaced
  }
  place_bytes_ = place;
  arena_bytes_ = arena;
  gradients_ = memory_.allocate(
      rank_bytes() * static_cast<std::size_t>(communicator().size()),
      "gradients");
  const std::size_t begin = rank_begin(communicator().rank());
  expected_->arena = std::make_shared<GradientArena>(
      gradients_,
      begin + HostMemory::kStreamDepth * place_bytes_,
      arena_bytes_);
  copied_ = {};
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

std::size_t SharedMemoryEngine::rank_bytes() const {
  return HostMemory::kStreamDepth * place_bytes_ + arena_bytes_;
}

std::size_t SharedMemoryEngine::rank_begin(int rank) const {
  return rank_bytes() * static_cast<std::size_t>(rank);
}

std::size_t SharedMemoryEngine::message_begin(
    int rank, std::size_t place) const {
  return rank_begin(rank) + place * place_bytes_;
}

void SharedMemoryEngine::begin_backward() {
  ExpectedGradients::set_current(expected_);
}

void SharedMemoryEngine::start_reduce(ParamGroup& group) {
  if (communicator().epoch() != epoch_) {
    epoch_ = communicator().epoch();
    next_place_ = 0;
  }
  const auto place = next_place_;
  next_place_ = (next_place_ + 1) % HostMemory::kStreamDepth;
  Posted posted{&group, 0, place, reduction_types(group)};
  memory_.wait_post_slot();
  held_[place].clear(); // every rank has read it
  {
    const Stopwatch stopwatch(reduce_time_);
    write_message(posted);
  }
  posted.number = memory_.post(
      {.meeting = Meeting::kGradients,
       .dtype = to_dtype(posted.types.wire),
       .op = ReduceOp::kAvg,
       .tree = group.tree,
       .numel = group.numel(),
       .subject = group.describe()});
  posted_.push_back(posted);
  group.has_unreduced_backward = false;
  if (posted_.size() > 1) {
    finish_oldest();
  }
}

void SharedMemoryEngine::write_message(const Posted& posted) {
  c10::AutoGradMode grad_off(false);
  const ParamGroup& group = *posted.group;
  std::byte* const base = gradients_->writable();
  const std::size_t begin = message_begin(communicator().rank(), posted.place);
  std::uint64_t* const header = header_of(base + begin);
  const std::size_t copies_begin = begin + header_bytes(group);
  std::size_t end = copies_begin;
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const at::Tensor grad = group.params[i]->release_full_grad();
    if (!grad.defined()) {
      header[i] = kNoGradient;
      continue;
    }
    if (grad.scalar_type() == posted.types.wire) {
      if (const auto offset =
              expected_->arena->offset_of(grad.const_data_ptr())) {
        header[i] = *offset;
        held_[posted.place].push_back(grad);
        continue;
      }
    }
    header[i] = end;
    view_of(base + end, grad.sizes(), posted.types.wire).copy_(grad);
    end += align_up(
        static_cast<std::size_t>(grad.numel()) *
            c10::elementSize(posted.types.wire),
        kAlignment);
  }
  count_copied(posted.place, static_cast<std::int64_t>(end - copies_begin));
}

void SharedMemoryEngine::count_copied(std::size_t place, std::int64_t bytes) {
  if (bytes > copied_[place].bytes()) {
    copied_[place] = {}; // first, or both would count for a moment
    copied_[place] = CountedBytes(MemoryComponent::kReduction, bytes);
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
  const std::byte* const base = gradients_->readable();
  std::vector<const void*> inputs(static_cast<std::size_t>(num_ranks));
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    ShardedParam& param = *group.params[i];
    const auto own_offset = static_cast<std::size_t>(param.rows().begin) *
                            static_cast<std::size_t>(param.row_numel()) *
                            c10::elementSize(posted.types.wire);
    bool any = false;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::uint64_t offset = reinterpret_cast<const std::uint64_t*>(
          base + message_begin(rank, posted.place))[i];
      const bool present = offset != kNoGradient;
      inputs[static_cast<std::size_t>(rank)] =
          present ? base + offset + own_offset : nullptr;
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
  ExpectedGradients::set_current(nullptr);
  while (!posted_.empty()) {
    finish_oldest();
  }
  communicator().meet(
      {.meeting = Meeting::kBackwardEnd,
       .tree = root.tree,
       .subject = root.describe()});
  held_ = {}; // every rank has summed
}

void SharedMemoryEngine::abandon() noexcept {
  ExpectedGradients::set_current(nullptr);
  posted_.clear();
  held_ = {};
}

} // namespace fsdp
