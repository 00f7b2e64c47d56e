#include "runtime/collective_engine.h"
#include "runtime/memory_account.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <utility>

#include "comm/c10d/scalar_type.h"
#include "runtime/stopwatch.h"

namespace fsdp {

/// A group's gather: where it goes, and how far it is.
struct CollectiveEngine::GroupSlot final : EngineSlot {
  std::vector<GatherPiece> pieces; ///< of the block
  std::unique_ptr<GatherBlock>
      block;                  ///< from the gather's begin to its release
  std::shared_ptr<Work> work; ///< while the gather is under way
};

namespace {

std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

} // namespace

CollectiveEngine::CollectiveEngine(ProcessGroup group, c10::Device device)
    : ShardEngine(std::move(group)), device_(device), pool_(device) {}

CollectiveEngine::~CollectiveEngine() = default;

CollectiveEngine::GroupSlot& CollectiveEngine::slot_of(
    ParamGroup& group) const {
  return static_cast<GroupSlot&>(*group.slot);
}

void CollectiveEngine::add(ParamGroup& group) {
  group.lay_out();
  auto slot = std::make_unique<GroupSlot>();
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const ShardedParam& param = *group.params[i];
    const auto row_bytes = static_cast<std::size_t>(param.row_numel()) *
                           c10::elementSize(param.compute_dtype());
    for (int rank = 0; rank < communicator().size(); ++rank) {
      const RowRange rows = param.rows(rank);
      slot->pieces.push_back(
          {.rank = rank,
           .offset = group.offsets[i] +
                     static_cast<std::size_t>(rows.begin) * row_bytes,
           .bytes = static_cast<std::size_t>(rows.length) * row_bytes});
    }
  }
  group.slot = std::move(slot);
}

// Every gather reads the shards.
void CollectiveEngine::publish(const Request&, std::span<ParamGroup* const>) {}

void CollectiveEngine::start_unshard(ParamGroup& group) {
  c10::InferenceMode inference_off(false);
  GroupSlot& slot = slot_of(group);
  slot.block = pool_.take(group.gathered_bytes, group.describe());
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    group.params[i]->copy_rows_to(
        slot.block->writable + group.offsets[i], device_);
  }
  slot.work = communicator().all_gather_in_place(
      slot.block->writable, slot.pieces, group.describe());
}

void CollectiveEngine::finish_unshard(ParamGroup& group) {
  GroupSlot& slot = slot_of(group);
  std::exchange(slot.work, nullptr)->wait();
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    ShardedParam& param = *group.params[i];
    slot.block->name_range(
        group.offsets[i], param.compute_bytes(), param.describe());
    param.to_unsharded(slot.block->readable + group.offsets[i]);
  }
}

void CollectiveEngine::reshard(ParamGroup& group) {
  for (const auto& param : group.params) {
    if (param->is_unsharded()) {
      param->to_sharded();
    }
  }
  GroupSlot& slot = slot_of(group);
  std::exception_ptr failure;
  if (const auto work = std::exchange(slot.work, nullptr)) {
    // A prefetch that nobody used; every rank has begun it, so it ends.
    try {
      work->wait();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (slot.block) {
    pool_.give_back(std::move(slot.block));
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void CollectiveEngine::pack_grads(Reduction& reduction) const {
  for (std::size_t i = 0; i < reduction.params.size(); ++i) {
    ShardedParam& param = *reduction.params[i];
    const at::Tensor grad = param.release_full_grad();
    reduction.has_grad.push_back(grad.defined());
    for (int rank = 0; rank < communicator().size(); ++rank) {
      const RowRange rows = param.rows(rank);
      if (rows.length == 0) {
        continue; // of thousands of ranks, many
      }
      const at::Tensor place = reduction.packed.narrow(
          0,
          reduction.layout.begins[i][static_cast<std::size_t>(rank)],
          rows.length * param.row_numel());
      if (grad.defined()) {
        place.copy_(grad.narrow(0, rows.begin, rows.length).reshape({-1}));
      } else {
        place.zero_();
      }
    }
  }
}

void CollectiveEngine::start_reduce(ParamGroup& group) {
  c10::InferenceMode inference_off(false);
  c10::AutoGradMode grad_off(false);
  const ReductionTypes types = reduction_types(group);
  Reduction reduction;
  for (const auto& param : group.params) {
    if (param->is_reduced()) {
      reduction.params.push_back(param.get());
    }
  }
  const Communicator& comm = communicator();
  reduction.layout = pack_rank_major(
      reduction.params, comm.size(), [](const ShardedParam& param) {
        return param.row_numel();
      });
  {
    const Stopwatch stopwatch(reduce_time_);
    const auto options = at::TensorOptions().dtype(types.wire).device(device_);
    {
      const MemoryScope scope(MemoryComponent::kReduction);
      reduction.packed = at::empty({reduction.layout.total}, options);
      pack_grads(reduction);
    }
    const MemoryScope scope(MemoryComponent::kGradients);
    reduction.means = at::empty(
        {reduction.layout.count_of_rank[static_cast<std::size_t>(comm.rank())]},
        options.dtype(types.result));
  }
  reduction.work = communicator().reduce_scatter(
      data_of(reduction.packed),
      to_dtype(types.wire),
      data_of(reduction.means),
      to_dtype(types.result),
      reduction.layout.count_of_rank,
      ReduceOp::kAvg,
      group.describe());
  group.has_unreduced_backward = false;
  under_way_.push_back(std::move(reduction));
  if (under_way_.size() > 1) {
    finish_oldest();
  }
}

void CollectiveEngine::finish_oldest() {
  Reduction reduction = std::move(under_way_.front());
  under_way_.pop_front();
  reduction.work->wait();
  c10::AutoGradMode grad_off(false);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < reduction.params.size(); ++i) {
    ShardedParam& param = *reduction.params[i];
    auto sizes = param.full_sizes();
    sizes[0] = param.rows().length;
    const std::int64_t numel = sizes[0] * param.row_numel();
    // variable_data: optimizers detach_() gradients, which views refuse.
    means_.push_back(
        {&param,
         reduction.means.narrow(0, begin, numel).view(sizes).variable_data(),
         reduction.has_grad[i]});
    begin += numel;
  }
}

void CollectiveEngine::finish_backward(const ParamGroup& root) {
  while (!under_way_.empty()) {
    finish_oldest();
  }
  Communicator& comm = communicator();
  // Which gradients exist anywhere: a parameter that no rank used gets none.
  const auto num_ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::uint8_t> present(means_.size() * num_ranks);
  const std::size_t own = means_.size() * static_cast<std::size_t>(comm.rank());
  for (std::size_t i = 0; i < means_.size(); ++i) {
    present[own + i] = means_[i].has_grad;
  }
  const std::vector<std::int64_t> counts(
      num_ranks, static_cast<std::int64_t>(means_.size()));
  comm.all_gather(
          present.data() + own,
          present.data(),
          counts,
          DType::kUInt8,
          "the gradients' presence")
      ->wait();
  auto means = std::exchange(means_, {});
  for (std::size_t i = 0; i < means.size(); ++i) {
    bool anywhere = false;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      anywhere = anywhere || present[rank * means.size() + i];
    }
    if (anywhere) {
      means[i].param->set_reduced_grad(std::move(means[i].value));
    }
  }
  comm.meet(
      {.meeting = Meeting::kBackwardEnd,
       .tree = root.tree,
       .subject = root.describe()});
}

void CollectiveEngine::abandon() noexcept {
  for (auto& reduction : under_way_) {
    try {
      // The backend reads and writes the buffers until then.
      reduction.work->wait();
    } catch (...) {
      // The failure that led here is already on its way to the caller.
    }
  }
  under_way_.clear();
  means_.clear();
}

} // namespace fsdp
