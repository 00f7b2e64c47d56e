// The planner's formulas beside what the real runtime asks for: to the byte.
// They share nothing but the split of rows over ranks.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "dryrun/dry_run.h"
#include "plan/catalog.h"
#include "plan/memory.h"
#include "plan/model.h"
#include "plan/traffic.h"

namespace fsdp {
namespace {

struct Case {
  std::string preset;
  std::string dtype = "fp32";
  std::string optimizer = "adamw";
  std::string reshard = "auto"; ///< false: shard_grad_op
  int passes = 1;
  bool sync = true;
};

plan::Job job_of(const Case& c, const TrainOptions& options) {
  plan::Job job;
  job.strategy = c.reshard == "false" ? plan::Strategy::kShardGradOp
                                      : plan::Strategy::kFullShard;
  if (c.dtype == "bf16") {
    job.precision.compute = DType::kBFloat16;
  }
  job.optimizer = c.optimizer == "adamw" ? plan::OptimizerKind::kAdamW
                                         : plan::OptimizerKind::kSgd;
  job.micro_batch = 1;
  job.seq_len = options.seq;
  job.accumulation = c.passes;
  job.sync_every_pass = c.sync;
  job.runtime = plan::Runtime::kLibfsdp;
  return job;
}

TrainOptions options_of(const Case& c, int size) {
  std::vector<Setting> settings{
      {"preset", c.preset},
      {"dtype", c.dtype},
      {"optimizer", c.optimizer},
      {"reshard-after-forward", c.reshard},
      {"batch", std::to_string(size * c.passes)},
      {"micro-batch", "1"},
      {"seq", "16"},
      {"clip", "0"}};
  if (!c.sync) {
    settings.emplace_back("no-sync-accumulation", "true");
  }
  return make_train_options(settings);
}

std::int64_t calls_of(
    const plan::TrafficEstimate& traffic, plan::Collective collective) {
  std::int64_t calls = 0;
  for (const plan::TrafficLine& line : traffic.lines) {
    calls += line.collective == collective ? line.calls : 0;
  }
  return calls;
}

void expect_agreement(const Case& c, int size) {
  SCOPED_TRACE(
      c.preset + " " + c.dtype + " " + c.optimizer + " " + c.reshard + " x" +
      std::to_string(c.passes) + " on " + std::to_string(size));
  const TrainOptions options = options_of(c, size);
  const DryRunReport dry = dry_run({.train = options, .world_size = size});
  const plan::ModelShape model = plan::model_of(plan::find_model(c.preset));
  plan::Cluster cluster;
  cluster.device = plan::find_device("A100-SXM-80GB");
  cluster.devices_per_node = size;
  const plan::Job job = job_of(c, options);
  const plan::MemoryEstimate memory =
      plan::estimate_memory(model, job, cluster);
  const plan::TrafficEstimate traffic =
      plan::estimate_traffic(model, job, cluster);

  EXPECT_EQ(dry.num_parameters, model.num_params());
  const MemoryReport& step = dry.after_step;
  EXPECT_EQ(step[MemoryComponent::kParameters].peak, memory.parameters);
  EXPECT_EQ(step[MemoryComponent::kGradients].peak, memory.gradients);
  EXPECT_EQ(step[MemoryComponent::kOptimizerState].peak, memory.optimizer);
  EXPECT_EQ(step[MemoryComponent::kGathered].peak, memory.gathered);
  EXPECT_EQ(dry.step.bytes_sent, traffic.sent_bytes());
  if (size > 1) {
    EXPECT_EQ(
        dry.step.num_all_gathers,
        calls_of(traffic, plan::Collective::kAllGather));
    EXPECT_EQ(
        dry.step.num_reduce_scatters,
        calls_of(traffic, plan::Collective::kReduceScatter));
  }
}

class PlanAgrees : public ::testing::TestWithParam<int> {};

TEST_P(PlanAgrees, WithTheDryRun) {
  for (const char* preset : {"seed", "bytes", "words"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      for (const char* reshard : {"auto", "false"}) {
        expect_agreement(
            {.preset = preset, .dtype = dtype, .reshard = reshard}, GetParam());
      }
    }
  }
}

TEST_P(PlanAgrees, WithTheDryRunOfSeveralPasses) {
  for (const bool sync : {true, false}) {
    expect_agreement(
        {.preset = "seed",
         .dtype = "bf16",
         .optimizer = "sgd",
         .passes = 3,
         .sync = sync},
        GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    PlanAgrees,
    ::testing::Values(1, 2, 3, 4, 7, 8, 64, 1000, 4096),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace fsdp
