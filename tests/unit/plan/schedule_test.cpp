#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "fsdp/error.h"
#include "plan/collective_time.h"
#include "plan/simulate.h"
#include "support/throws.h"
#include "unit/plan/plan_shapes.h"

namespace fsdp::plan {
namespace {

using testing::bf16_job;
using testing::round_cluster;
using testing::round_model;

Schedule schedule_of(
    const ModelShape& model,
    const Job& job,
    const Cluster& cluster,
    const Conditions& conditions = {}) {
  return make_schedule(
      model, job, cluster, compute_times(model, job, cluster), conditions);
}

TEST(Schedule, EachStrategyHasItsCollectives) {
  const ModelShape model = round_model(3, 2048);
  const Cluster cluster = round_cluster(4, 8);
  const double numel = 12.0 * 2048 * 2048;
  const auto expect = [&](Strategy strategy,
                          RankGroup shard,
                          RankGroup replica,
                          bool reshards) {
    SCOPED_TRACE(std::string(name_of(strategy)));
    const Schedule schedule = schedule_of(model, bf16_job(strategy), cluster);
    const ScheduledUnit& unit = schedule.blocks.at(1);
    const auto seconds =
        [&](Collective collective, double bytes, const RankGroup& group) {
          return collective_time(collective, bytes, group, cluster.device)
              .seconds();
        };
    EXPECT_DOUBLE_EQ(
        unit.unshard.seconds,
        seconds(Collective::kAllGather, 2 * numel, shard));
    // libfsdp sends bf16, which the sum widens; FSDP2 widens first.
    EXPECT_DOUBLE_EQ(
        unit.reduce.seconds,
        seconds(Collective::kReduceScatter, 2 * numel, shard));
    Job fsdp2 = bf16_job(strategy);
    fsdp2.runtime = Runtime::kFsdp2;
    EXPECT_DOUBLE_EQ(
        schedule_of(model, fsdp2, cluster).blocks.at(1).reduce.seconds,
        seconds(Collective::kReduceScatter, 4 * numel, shard));
    EXPECT_DOUBLE_EQ(
        unit.replicate.seconds,
        seconds(
            Collective::kAllReduce,
            4 * numel / static_cast<double>(shard.ranks),
            replica));
    EXPECT_EQ(schedule.reshard_after_forward, reshards);
  };
  expect(Strategy::kNoShard, {1, 1}, {32, 4}, false);
  expect(Strategy::kShardGradOp, {32, 4}, {1, 1}, false);
  expect(Strategy::kFullShard, {32, 4}, {1, 1}, true);
  expect(Strategy::kHybridShard, {8, 1}, {4, 4}, true);
  expect(Strategy::kHybridShardZero2, {8, 1}, {4, 4}, false);
}

TEST(Schedule, BucketsMergeNeighboursUntilTheyAreLargeEnough) {
  const ModelShape model = round_model(7, 1024);
  const Job job = bf16_job();
  const Cluster cluster = round_cluster(1, 8);
  const std::int64_t block_bytes = 2 * 12 * 1024 * 1024;
  const auto names = [&](std::int64_t bytes) {
    Conditions conditions;
    conditions.bucket_bytes = bytes;
    std::string text;
    for (const ScheduledUnit& unit :
         schedule_of(model, job, cluster, conditions).blocks) {
      text += unit.name + ";";
    }
    return text;
  };
  EXPECT_EQ(
      names(2 * block_bytes + 1),
      "blocks.0 to blocks.2;blocks.3 to blocks.5;blocks.6;");
  EXPECT_EQ(names(block_bytes), names(0));
  EXPECT_EQ(names(1'000'000'000'000), "blocks.0 to blocks.6;");
}

TEST(Schedule, BucketsChangeNoComputeAndNoBytes) {
  const ModelShape model = round_model(12, 2048);
  const Job job = bf16_job();
  const Cluster cluster = round_cluster(2, 8);
  const SimulatedStep apart = simulate(schedule_of(model, job, cluster));
  Conditions conditions;
  conditions.bucket_bytes = 500'000'000;
  const SimulatedStep merged =
      simulate(schedule_of(model, job, cluster, conditions));
  EXPECT_NEAR(merged.compute, apart.compute, 1e-12);
  // 12 units of 100 MB become 3 of 500 MB at most: 9 times three messages
  // fewer.
  const double latency =
      collective_time(Collective::kAllGather, 1, {16, 2}, cluster.device)
          .latency;
  EXPECT_NEAR(
      merged.communication, apart.communication - 9 * 3 * latency, 1e-12);
}

TEST(Schedule, AStragglerStretchesComputeAndNothingElse) {
  const ModelShape model = round_model(4, 4096);
  const Job job = bf16_job();
  const Cluster cluster = round_cluster(2, 8);
  Conditions conditions;
  conditions.straggler_factor = 1.5;
  const SimulatedStep even = simulate(schedule_of(model, job, cluster));
  const SimulatedStep uneven =
      simulate(schedule_of(model, job, cluster, conditions));
  EXPECT_NEAR(uneven.compute, 1.5 * even.compute, 1e-12);
  EXPECT_DOUBLE_EQ(uneven.communication, even.communication);
  EXPECT_GT(uneven.seconds, even.seconds);
}

TEST(Schedule, ASlowLinkStretchesTheBytesOnly) {
  const ModelShape model = round_model(4, 4096);
  const Job job = bf16_job();
  const Cluster cluster = round_cluster(2, 8);
  double before = 0;
  for (const double factor : {1.0, 0.7, 0.3, 0.01}) {
    Conditions conditions;
    conditions.link_factor = factor;
    const SimulatedStep step =
        simulate(schedule_of(model, job, cluster, conditions));
    EXPECT_GE(step.seconds, before);
    before = step.seconds;
  }
}

TEST(Schedule, OffloadCopiesTheShardOverTheHostLink) {
  const ModelShape model = round_model(2, 2048);
  Job job = bf16_job();
  const Cluster cluster = round_cluster(1, 8);
  const double plain =
      schedule_of(model, job, cluster).blocks[0].unshard.seconds;
  job.cpu_offload = true;
  const double shard_bytes = 4 * 12.0 * 2048 * 2048 / 8;
  EXPECT_NEAR(
      schedule_of(model, job, cluster).blocks[0].unshard.seconds - plain,
      shard_bytes / (0.88 * 60e9),
      1e-12);
  Cluster hostless = cluster;
  hostless.device.host_bandwidth = 0;
  EXPECT_EQ(
      fsdp::testing::thrown_text<ConfigError>(
          [&] { schedule_of(model, job, hostless); }),
      "device 'round' has no bandwidth to the host, which offload uses: give "
      "it by a flag, or keep the states on the device");
}

TEST(Schedule, RefusesConditionsThatMakeNoSense) {
  const ModelShape model = round_model(1, 1024);
  const auto refusal = [&](const Conditions& conditions) {
    return fsdp::testing::thrown_text<ConfigError>([&] {
      schedule_of(model, bf16_job(), round_cluster(1, 8), conditions);
    });
  };
  EXPECT_EQ(
      refusal({.link_factor = 0}),
      "the factor of slow links is 0.000000; expected a finite number above 0");
  EXPECT_EQ(
      refusal({.link_factor = std::numeric_limits<double>::infinity()}),
      "the factor of slow links is inf; expected a finite number above 0");
  EXPECT_EQ(
      refusal({.straggler_factor = 0.5}),
      "the factor of a straggler is 0.500000; expected a finite number of at "
      "least 1");
  EXPECT_EQ(
      refusal({.bucket_bytes = -1}),
      "the bucket is -1 bytes; expected 0 or more");
}

TEST(Throughput, CountsTokensOfAllRanksAndFlopsOfOne) {
  const ModelShape model = round_model(10, 4096);
  Job job = bf16_job();
  job.micro_batch = 4;
  job.accumulation = 3;
  job.checkpointing = Checkpointing::kFull;
  const Cluster cluster = round_cluster(2, 8);
  const ComputeTimes compute = compute_times(model, job, cluster);
  const SimulatedStep step =
      simulate(make_schedule(model, job, cluster, compute));
  const Throughput result = throughput_of(step, compute, job, cluster);
  const double tokens = 3 * 4 * 2048;
  EXPECT_NEAR(result.tokens_per_second, 16 * tokens / step.seconds, 1e-6);
  const double per_token =
      6.0 * static_cast<double>(model.num_params()) + 12.0 * 10 * 4096 * 2048;
  EXPECT_NEAR(result.mfu, per_token * tokens / step.seconds / 1000e12, 1e-12);
  EXPECT_GT(result.hfu, result.mfu);
  EXPECT_LT(result.hfu, 1);
}

} // namespace
} // namespace fsdp::plan
