#include "plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "support/throws.h"
#include "unit/plan/plan_shapes.h"

namespace fsdp::plan {
namespace {

using testing::bf16_job;
using testing::round_cluster;
using testing::round_model;

/// Grows with the batch and the depth, shrinks with the shards and with
/// checkpointing: a plain stand-in that a reader can follow.
MemoryEstimate plain_memory(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  MemoryEstimate memory;
  const std::int64_t shards = shard_ranks(job, cluster);
  memory.parameters = model.num_params() * 4 / shards;
  memory.optimizer = model.num_params() * 8 / shards;
  const std::int64_t block = model.blocks.front().numel() * 2;
  const bool keeps = job.strategy == Strategy::kShardGradOp ||
                     job.strategy == Strategy::kHybridShardZero2;
  memory.gathered =
      keeps ? model.num_params() * 2 : block * (job.prefetch_depth + 1);
  memory.full_gradients = job.sync_every_pass ? 0 : model.num_params() * 4;
  const std::int64_t kept = job.checkpointing == Checkpointing::kNone ? 34
                            : job.checkpointing == Checkpointing::kSelective
                                ? 16
                                : 2;
  memory.activations = kept * job.micro_batch * job.seq_len *
                       model.transformer->hidden *
                       static_cast<std::int64_t>(model.blocks.size());
  return memory;
}

double seconds_of(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  return simulate(make_schedule(
                      model, job, cluster, compute_times(model, job, cluster)))
      .seconds;
}

/// The fastest of all jobs, by loops over everything.
double fastest_of_all(
    const SearchRequest& request, const MemoryModel& memory_of) {
  const std::int64_t world = request.cluster.world_size();
  double best = std::numeric_limits<double>::infinity();
  for (int strategy = 0; strategy < 5; ++strategy) {
    for (std::int64_t shard = 1; shard <= world; ++shard) {
      for (std::int64_t micro = 1; micro <= request.global_batch; ++micro) {
        for (int mode = 0; mode < 3 * 2 * 5; ++mode) {
          Job job = request.base;
          job.strategy = static_cast<Strategy>(strategy);
          job.shard_size = shard;
          job.micro_batch = micro;
          job.accumulation = request.global_batch / world / micro;
          job.checkpointing = static_cast<Checkpointing>(mode % 3);
          job.sync_every_pass = mode / 3 % 2 == 0;
          job.prefetch_depth = mode / 6;
          if (job.accumulation * micro * world != request.global_batch) {
            continue;
          }
          try {
            check(job, request.cluster);
          } catch (const ConfigError&) {
            continue;
          }
          const double memory = static_cast<double>(
              memory_of(request.model, job, request.cluster).total());
          if (memory <= request.cluster.device.memory_bytes) {
            best =
                std::min(best, seconds_of(request.model, job, request.cluster));
          }
        }
      }
    }
  }
  return best;
}

SearchRequest request_of(
    ModelShape model, Cluster cluster, std::int64_t global_batch) {
  return {std::move(model), std::move(cluster), bf16_job(), global_batch};
}

void expect_fastest(const SearchRequest& request, const MemoryModel& memory) {
  const SearchResult result = search(request, memory);
  const double expected = fastest_of_all(request, memory);
  if (result.best() == nullptr) {
    EXPECT_EQ(expected, std::numeric_limits<double>::infinity());
    return;
  }
  // Equally fast ones, within 0.1 %, are chosen by memory.
  EXPECT_LE(result.best()->step.seconds, expected * 1.001);
  EXPECT_GE(result.best()->step.seconds, expected * (1 - 1e-12));
}

TEST(Search, FindsTheFastestOfAllJobs) {
  for (const double memory : {10e9, 20e9, 40e9, 80e9, 640e9}) {
    for (const std::int64_t nodes : {1, 2}) {
      SearchRequest request =
          request_of(round_model(4, 4096), round_cluster(nodes, 4), 24 * nodes);
      request.cluster.device.memory_bytes = memory;
      SCOPED_TRACE(std::to_string(memory) + " " + std::to_string(nodes));
      expect_fastest(request, plain_memory);
    }
  }
}

TEST(Search, FindsItWhereOnePassTakesLessMemoryThanTwo) {
  // Gradients that an earlier pass has left weigh more than the activations of
  // a larger batch.
  for (double memory = 4e9; memory < 24e9; memory += 0.25e9) {
    SearchRequest request =
        request_of(round_model(4, 4096, 1000), round_cluster(1, 2), 8);
    request.base.seq_len = 128;
    request.cluster.device.memory_bytes = memory;
    SCOPED_TRACE(memory);
    expect_fastest(request, estimate_memory);
  }
}

TEST(Search, EveryPlanIsFeasibleAndAsGoodAsItSays) {
  SearchRequest request =
      request_of(round_model(6, 4096), round_cluster(3, 4), 12 * 12);
  request.cluster.device.memory_bytes = 12e9;
  const SearchResult result = search(request, plain_memory);
  ASSERT_GT(result.plans.size(), 10U);
  bool fitted = true;
  double before = 0;
  for (const PlannedJob& plan : result.plans) {
    check(plan.job, request.cluster);
    EXPECT_EQ(
        plan.job.micro_batch * plan.job.accumulation * 12,
        request.global_batch);
    EXPECT_EQ(
        plan.fits,
        static_cast<double>(
            plain_memory(request.model, plan.job, request.cluster).total()) <=
            12e9);
    EXPECT_LE(plan.fits, fitted); // those that fit come first
    if (plan.fits) {
      EXPECT_NEAR(
          plan.step.seconds,
          seconds_of(request.model, plan.job, request.cluster),
          1e-12);
      EXPECT_GE(plan.step.seconds, before);
      before = plan.step.seconds;
    }
    fitted = plan.fits;
    EXPECT_EQ(plan.why.empty(), &plan == result.best());
  }
  EXPECT_FALSE(fitted);
}

TEST(Search, SaysWhyTheOthersLose) {
  SearchRequest request =
      request_of(round_model(6, 4096), round_cluster(2, 8), 64);
  request.cluster.device.memory_bytes = 10e9;
  const SearchResult result = search(request, plain_memory);
  ASSERT_NE(result.best(), nullptr);
  const auto why = [&](Strategy strategy, Checkpointing checkpointing) {
    for (const PlannedJob& plan : result.plans) {
      if (plan.job.strategy == strategy &&
          plan.job.checkpointing == checkpointing) {
        return plan.why;
      }
    }
    return std::string("not there");
  };
  EXPECT_EQ(why(Strategy::kNoShard, Checkpointing::kFull), [&] {
    Job job = bf16_job(Strategy::kNoShard);
    job.prefetch_depth = 0;
    job.checkpointing = Checkpointing::kFull;
    const auto needed = static_cast<double>(
        plain_memory(request.model, job, request.cluster).total());
    char text[100];
    std::snprintf(
        text,
        sizeof(text),
        "needs %.3g GB more than there is room for, most of it optimizer "
        "state",
        (needed - 10e9) / 1e9);
    return std::string(text);
  }());
  EXPECT_THAT(
      result.plans[1].why,
      ::testing::AnyOf(
          ::testing::HasSubstr(" % slower: "), "as fast within 0.1 %"));
}

TEST(Search, GivesTheSameAgain) {
  const SearchRequest request =
      request_of(round_model(4, 2048), round_cluster(2, 8), 64);
  const SearchResult first = search(request, plain_memory);
  const SearchResult second = search(request, plain_memory);
  ASSERT_EQ(first.plans.size(), second.plans.size());
  for (std::size_t i = 0; i < first.plans.size(); ++i) {
    EXPECT_EQ(first.plans[i].step.seconds, second.plans[i].step.seconds);
    EXPECT_EQ(first.plans[i].job.shard_size, second.plans[i].job.shard_size);
    EXPECT_EQ(first.plans[i].why, second.plans[i].why);
  }
}

TEST(Search, ATrillionParametersOnSixteenThousandDevices) {
  SearchRequest request =
      request_of(round_model(128, 25'600), round_cluster(2048, 8), 16'384 * 12);
  request.cluster.device.memory_bytes = 96e9;
  EXPECT_GT(request.model.num_params(), 1'000'000'000'000);
  SearchRequest roomy = request; // every plan fits and is simulated
  roomy.cluster.device.memory_bytes = 1e15;
  for (const SearchRequest& each : {request, roomy}) {
    const auto begin = std::chrono::steady_clock::now();
    const SearchResult result = search(each);
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - begin;
    ASSERT_NE(result.best(), nullptr);
    std::printf(
        "%d plans in %.3f s\n",
        static_cast<int>(result.considered),
        elapsed.count());
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    EXPECT_LT(elapsed.count(), 1);
#endif
  }
}

TEST(Search, OneDeviceAndSharedMemoryHaveFewPlans) {
  SearchRequest request =
      request_of(round_model(2, 1024), round_cluster(1, 1), 4);
  for (const PlannedJob& plan : search(request, plain_memory).plans) {
    EXPECT_EQ(plan.job.strategy, Strategy::kNoShard);
  }
  request = request_of(round_model(2, 1024), round_cluster(1, 4), 4);
  request.base.transport = Transport::kSharedMemory;
  for (const PlannedJob& plan : search(request, plain_memory).plans) {
    check(plan.job, request.cluster);
  }
}

TEST(Search, RefusesABatchThatDoesNotDivide) {
  SearchRequest request =
      request_of(round_model(2, 1024), round_cluster(1, 8), 12);
  const auto refusal = [&] {
    return fsdp::testing::thrown_text<ConfigError>(
        [&] { search(request, plain_memory); });
  };
  EXPECT_EQ(
      refusal(),
      "a global batch of 12 sequences does not divide over 8 ranks: choose a "
      "multiple of that, at most 1e12");
  request.global_batch = 0;
  EXPECT_EQ(
      refusal(),
      "a global batch of 0 sequences does not divide over 8 ranks: choose a "
      "multiple of that, at most 1e12");
  request.global_batch = 8;
  request.cluster.device.memory_bytes = 0;
  EXPECT_EQ(
      refusal(),
      "device 'round' has no size of its memory, which a search needs: give it "
      "by a flag, or choose another device");
}

} // namespace
} // namespace fsdp::plan
