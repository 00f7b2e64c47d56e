// The runtime's step on the dry device, beside the same step with memory and
// peers.

#include "dryrun/dry_run.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <mutex>
#include <tuple>

#include "fsdp/clip_grad.h"
#include "runtime/memory_account.h"
#include "support/ranks.h"
#include "train/models/language_model.h"
#include "train/run_setup.h"
#include "train/validation.h"

namespace fsdp {
namespace {

TrainOptions options_of(const std::vector<Setting>& settings) {
  std::vector<Setting> all{{"evals", "0"}, {"sample", "0"}};
  all.insert(all.end(), settings.begin(), settings.end());
  return make_train_options(all);
}

/// What `rank` of the same run has with real tensors, as threads over gloo.
DryRunReport real_run(const TrainOptions& options, const ProcessGroup& world) {
  const RankMemory mine;
  DryRunReport report;
  const LanguageModel model = make_model(options.shape, 0);
  shard_for_run(model, options, testing::shard_mesh(world));
  const auto optimizer = make_optimizer(options, model.module->parameters());
  const std::int64_t rows = options.batch / world.size();
  const Communicator& comm = world.communicator();
  for (int step = 0; step < 2; ++step) {
    reset_peak_memory();
    const CommCounters before = comm.counters();
    const auto tokens = [&] {
      return at::zeros({rows, options.seq}, at::kLong);
    };
    const at::Tensor loss = summed_loss(model.forward(tokens()), tokens());
    report.after_forward = memory_report();
    (loss / static_cast<double>(rows * options.seq)).backward();
    clip_grad_norm_(*model.module, options.clip);
    optimizer->step();
    optimizer->zero_grad();
    report.step = comm.counters();
    report.step.bytes_sent -= before.bytes_sent;
    report.step.num_meetings -= before.num_meetings;
    report.step.num_all_gathers -= before.num_all_gathers;
    report.step.num_reduce_scatters -= before.num_reduce_scatters;
    report.step.num_all_reduces -= before.num_all_reduces;
  }
  report.after_step = memory_report();
  return report;
}

void expect_same(const DryRunReport& dry, const DryRunReport& real) {
  EXPECT_EQ(dry.step.bytes_sent, real.step.bytes_sent);
  EXPECT_EQ(dry.step.num_meetings, real.step.num_meetings);
  EXPECT_EQ(dry.step.num_all_gathers, real.step.num_all_gathers);
  EXPECT_EQ(dry.step.num_reduce_scatters, real.step.num_reduce_scatters);
  EXPECT_EQ(dry.step.num_all_reduces, real.step.num_all_reduces);
  for (const auto component :
       {MemoryComponent::kParameters,
        MemoryComponent::kGradients,
        MemoryComponent::kOptimizerState,
        MemoryComponent::kGathered,
        MemoryComponent::kReduction}) {
    SCOPED_TRACE(name_of(component));
    EXPECT_EQ(
        dry.after_step[component].current, real.after_step[component].current);
    EXPECT_EQ(dry.after_step[component].peak, real.after_step[component].peak);
  }
  const auto peak = [](const DryRunReport& report) {
    return static_cast<double>(
        report.after_step[MemoryComponent::kActivations].peak);
  };
  EXPECT_NEAR(peak(dry) / peak(real), 1, 0.03)
      << peak(dry) << " " << peak(real);
}

using Parameters = std::tuple<int, std::string, std::string>;

class DryRun : public ::testing::TestWithParam<Parameters> {};

TEST_P(DryRun, CountsWhatARealRunHas) {
  const auto& [size, preset, dtype] = GetParam();
  const TrainOptions options = options_of(
      {{"preset", preset},
       {"dtype", dtype},
       {"batch", std::to_string(2 * size)},
       {"seq", "64"},
       {"clip", "1"}});
  install_counting_allocator();
  std::vector<DryRunReport> real(static_cast<std::size_t>(size));
  testing::with_ranks(
      size,
      [&](const ProcessGroup& world) {
        real[static_cast<std::size_t>(world.rank())] = real_run(options, world);
      },
      "gloo");
  for (int rank = 0; rank < size; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    expect_same(
        dry_run({.train = options, .world_size = size, .rank = rank}),
        real[static_cast<std::size_t>(rank)]);
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [size, preset, dtype] = info.param;
  return preset + "_" + dtype + "_" + std::to_string(size);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    DryRun,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 8),
        ::testing::Values("seed", "tiny"),
        ::testing::Values("fp32", "bf16")),
    name_of_case);

} // namespace
} // namespace fsdp
