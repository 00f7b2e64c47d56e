#include "dryrun/dry_run.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <limits>
#include <string>

#include "comm/backend.h"
#include "comm/c10d/group_without_peers.h"
#include "comm/counting_communicator.h"
#include "dryrun/dry_device.h"
#include "fsdp/clip_grad.h"
#include "fsdp/device_mesh.h"
#include "fsdp/error.h"
#include "fsdp/meta_init.h"
#include "runtime/memory_account.h"
#include "train/run_setup.h"
#include "train/validation.h"

namespace fsdp {
namespace {

constexpr const char* kBackend = "counting";

bool is_memory(const void* data) {
  return !is_dry_address(data);
}

MadeCommunicator make_counting(const BackendArgs& args) {
  return {
      .communicator = std::make_unique<CountingCommunicator>(
          args.rank, args.size, args.timeout, &is_memory)};
}

ProcessGroup counted_world(const DryRunOptions& options) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    throw ConfigError(
        "dry run: rank " + std::to_string(options.rank) + " of " +
        std::to_string(options.world_size) +
        " ranks; expected 1 rank or more, and one from 0 to one less");
  }
  register_backend({kBackend, &make_counting, std::nullopt});
  return group_without_peers(options.rank, options.world_size, kBackend);
}

CommCounters operator-(CommCounters after, const CommCounters& before) {
  after.num_meetings -= before.num_meetings;
  after.num_all_gathers -= before.num_all_gathers;
  after.num_reduce_scatters -= before.num_reduce_scatters;
  after.num_all_reduces -= before.num_all_reduces;
  after.num_broadcasts -= before.num_broadcasts;
  after.bytes_sent -= before.bytes_sent;
  after.waited -= before.waited;
  return after;
}

/// Without what only a real run reads.
TrainOptions without_data(TrainOptions options) {
  options.needs_data = false;
  return options;
}

/// The rank, its model and its optimizer.
class DryRank {
 public:
  explicit DryRank(const DryRunOptions& options)
      : options_(without_data(options.train)), world_(counted_world(options)) {
    check_train_options(options_, world_.size(), no_limit());
    {
      const MetaInitGuard no_memory_yet;
      model_ = make_model(options_.shape, options_.seed);
    }
    const c10::Device device = dry_device();
    const DeviceMesh mesh =
        init_device_mesh(world_, kDryDeviceType, {world_.size()}, {"shard"});
    shard_for_run(model_, options_, mesh);
    to_empty(*model_.module, device);
    optimizer_ = make_optimizer(options_, model_.module->parameters());
    report_.num_parameters = model_.num_parameters;
    report_.shards = shard_infos(*model_.module);
    report_.at_rest = memory_now();
  }

  DryRunReport run() {
    step(); // the optimizer makes its state
    MemoryAccount::current().reset_peaks();
    const CommCounters before = world_.communicator().counters();
    const RuntimeCounters runtime = runtime_counters(*model_.module);
    step();
    report_.after_step = memory_now();
    report_.step = world_.communicator().counters() - before;
    report_.runtime = runtime_counters(*model_.module);
    report_.runtime.num_unshards -= runtime.num_unshards;
    report_.runtime.num_reductions -= runtime.num_reductions;
    return report_;
  }

 private:
  static MemoryLimit no_limit() {
    return {
        .available_bytes = std::numeric_limits<std::uint64_t>::max(),
        .source = "no limit"};
  }

  static MemoryReport memory_now() { return MemoryAccount::current().report(); }

  at::Tensor tokens(std::int64_t rows) const {
    return at::empty(
        {rows, options_.seq},
        at::TensorOptions().dtype(at::kLong).device(dry_device()));
  }

  void step() {
    const std::int64_t share = options_.batch / world_.size();
    const std::int64_t micro =
        options_.micro_batch == 0 ? share : options_.micro_batch;
    for (std::int64_t done = 0; done < share; done += micro) {
      if (options_.no_sync_accumulation) {
        set_requires_gradient_sync(*model_.module, done + micro == share);
      }
      const at::Tensor loss =
          summed_loss(model_.forward(tokens(micro)), tokens(micro));
      report_.after_forward = memory_now();
      (loss / static_cast<double>(share * options_.seq)).backward();
    }
    if (options_.clip > 0) {
      clip_grad_norm_(*model_.module, options_.clip);
    }
    optimizer_->step();
    optimizer_->zero_grad();
  }

  const TrainOptions options_;
  const ProcessGroup world_;
  LanguageModel model_;
  std::unique_ptr<Optimizer> optimizer_;
  DryRunReport report_;
};

} // namespace

DryRunReport dry_run(const DryRunOptions& options) {
  return DryRank(options).run();
}

} // namespace fsdp
