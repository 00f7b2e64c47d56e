#include "runtime/collective_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "comm/c10d/scalar_type.h"
#include "runtime/stopwatch.h"

namespace fsdp {

/// A group's gather: its buffers, and how far it is.
struct CollectiveEngine::GroupSlot final : EngineSlot {
  PackedLayout layout; ///< in bytes
  at::Tensor packed;   ///< all ranks' shards, while a gather is under way
  std::shared_ptr<Work> work;
  std::unique_ptr<GatherBlock> block; ///< while gathered
};

namespace {

std::int64_t row_bytes(const ShardedParam& param) {
  return param.row_numel() *
         static_cast<std::int64_t>(c10::elementSize(param.compute_dtype()));
}

std::vector<ShardedParam*> params_of(const ParamGroup& group) {
  std::vector<ShardedParam*> params;
  for (const auto& param : group.params) {
    params.push_back(param.get());
  }
  return params;
}

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
  slot->layout =
      pack_rank_major(params_of(group), communicator().size(), row_bytes);
  group.slot = std::move(slot);
}

// Every gather reads the shards.
void CollectiveEngine::publish(const Request&, std::span<ParamGroup* const>) {}

void CollectiveEngine::start_unshard(ParamGroup& group) {
  c10::InferenceMode inference_off(false);
  c10::AutoGradMode grad_off(false);
  GroupSlot& slot = slot_of(group);
  const int rank = communicator().rank();
  slot.packed = at::empty(
      {slot.layout.total},
      at::TensorOptions().dtype(c10::kByte).device(device_));
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const ShardedParam& param = *group.params[i];
    const at::Tensor shard = param.local()
                                 .to(param.compute_dtype())
                                 .contiguous()
                                 .view({-1})
                                 .view(c10::kByte);
    const auto begin = slot.layout.begins[i][static_cast<std::size_t>(rank)];
    slot.packed.narrow(0, begin, shard.numel()).copy_(shard);
  }
  std::byte* data = data_of(slot.packed);
  slot.work = communicator().all_gather(
      data + slot.layout.begin_of_rank(rank),
      data,
      slot.layout.count_of_rank,
      DType::kUInt8,
      group.describe());
}

void CollectiveEngine::copy_out(ParamGroup& group, GroupSlot& slot) const {
  const at::Tensor full = at::from_blob(
      slot.block->writable,
      {static_cast<std::int64_t>(group.gathered_bytes)},
      at::TensorOptions().dtype(c10::kByte).device(device_));
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const ShardedParam& param = *group.params[i];
    for (int rank = 0; rank < communicator().size(); ++rank) {
      const RowRange rows = param.rows(rank);
      const auto place = static_cast<std::int64_t>(group.offsets[i]) +
                         rows.begin * row_bytes(param);
      const auto bytes = rows.length * row_bytes(param);
      const auto begin = slot.layout.begins[i][static_cast<std::size_t>(rank)];
      full.narrow(0, place, bytes).copy_(slot.packed.narrow(0, begin, bytes));
    }
  }
}

void CollectiveEngine::finish_unshard(ParamGroup& group) {
  c10::InferenceMode inference_off(false);
  c10::AutoGradMode grad_off(false);
  GroupSlot& slot = slot_of(group);
  std::exchange(slot.work, nullptr)->wait();
  slot.block = pool_.take(group.gathered_bytes, group.describe());
  copy_out(group, slot);
  slot.packed.reset();
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
  if (slot.block) {
    pool_.give_back(std::move(slot.block));
  }
  if (slot.work) {
    // A prefetch that nobody used; every rank has begun it, so it ends.
    std::exchange(slot.work, nullptr)->wait();
  }
  slot.packed.reset();
}

void CollectiveEngine::pack_grads(Reduction& reduction) const {
  for (std::size_t i = 0; i < reduction.params.size(); ++i) {
    ShardedParam& param = *reduction.params[i];
    const at::Tensor grad = param.release_full_grad();
    reduction.has_grad.push_back(grad.defined());
    for (int rank = 0; rank < communicator().size(); ++rank) {
      const RowRange rows = param.rows(rank);
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
    reduction.packed = at::empty({reduction.layout.total}, options);
    reduction.means = at::empty(
        {reduction.layout.count_of_rank[static_cast<std::size_t>(comm.rank())]},
        options.dtype(types.result));
    pack_grads(reduction);
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
