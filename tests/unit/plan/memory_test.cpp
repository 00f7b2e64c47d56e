// Rank 0's bytes by component, against the rules counted one by one.

#include "plan/memory.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "fsdp/error.h"
#include "models.h"
#include "plan/catalog.h"
#include "plan/unit_bytes.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

using ::testing::HasSubstr;

std::int64_t padded(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// What exact_memory_test of the runtime expects of rank 0.
struct Expected {
  std::int64_t own = 0; ///< elements
  std::int64_t num_tensors = 0;
  std::vector<std::int64_t> gathered; ///< the root first
};

Expected expect_of(const ModelShape& model, std::int64_t size, int element) {
  Expected expected;
  const auto add = [&](const UnitShape& unit) {
    std::int64_t bytes = 0;
    for (const ParamShape& param : unit.params) {
      std::int64_t numel = 1;
      for (const std::int64_t dim : param.shape) {
        numel *= dim;
      }
      const std::int64_t rows = (param.shape[0] + size - 1) / size;
      expected.own += rows * (numel / param.shape[0]);
      bytes += padded(numel * element);
      ++expected.num_tensors;
    }
    expected.gathered.push_back(bytes);
  };
  add(model.root);
  for (const UnitShape& block : model.blocks) {
    add(block);
  }
  return expected;
}

TEST(Memory, OfTheGoldModelIsCountedByHand) {
  const MemoryEstimate memory = estimate_memory(gold(), {}, cluster_of(1, 2));
  EXPECT_EQ(memory.parameters, 72);
  EXPECT_EQ(memory.gradients, 72);
  EXPECT_EQ(memory.optimizer, 144 + 4 * 4); // and a step count a tensor
  EXPECT_EQ(memory.padding, 0);
  // 15, 5, 10 and 2 numbers, each from a multiple of 64 bytes on.
  EXPECT_EQ(memory.gathered, 64 + 64 + 64 + 64);
  Job job;
  job.runtime = Runtime::kFsdp2;
  EXPECT_EQ(estimate_memory(gold(), job, cluster_of(1, 2)).padding, 144 - 128);
  EXPECT_EQ(estimate_memory(gold(), job, cluster_of(1, 8)).padding, 320 - 128);
}

TEST(Shards, AreRankZerosRows) {
  const UnitShards two = shards_of(gold(), 2);
  EXPECT_EQ(two.own, 18);
  EXPECT_EQ(two.numel, 32);
  EXPECT_EQ(two.padded, 36);
  const UnitShards eight = shards_of(gold(), 8);
  EXPECT_EQ(eight.own, 10);
  EXPECT_EQ(eight.padded, 80);
  EXPECT_EQ(eight.num_tensors, 4);
}

TEST(Memory, FollowsTheRuntimesRules) {
  std::mt19937 random(3);
  const ModelShape models[]{gold(), uneven(), model_of(find_model("words"))};
  for (int i = 0; i < 300; ++i) {
    const ModelShape& model = models[random() % 3];
    const auto size = static_cast<std::int64_t>(1 + random() % 20);
    const bool half = random() % 2 == 0;
    Job job;
    job.prefetch_depth = static_cast<int>(random() % 4);
    if (half) {
      job.precision = kBf16;
    }
    const MemoryEstimate memory =
        estimate_memory(model, job, cluster_of(1, size));
    const Expected expected = expect_of(model, size, half ? 2 : 4);
    EXPECT_EQ(memory.parameters, expected.own * 4);
    EXPECT_EQ(memory.gradients, expected.own * 4);
    EXPECT_EQ(memory.optimizer, expected.own * 8 + expected.num_tensors * 4);
    // The root, and the most that follow each other.
    std::int64_t most = 0;
    for (std::size_t first = 1; first < expected.gathered.size(); ++first) {
      std::int64_t sum = 0;
      for (std::size_t j = first;
           j <= first + static_cast<std::size_t>(job.prefetch_depth) &&
           j < expected.gathered.size();
           ++j) {
        sum += expected.gathered[j];
      }
      most = std::max(most, sum);
    }
    EXPECT_EQ(memory.gathered, expected.gathered[0] + most);
    // exact_memory_test's bound for collectives.
    std::int64_t block = 0;
    for (std::size_t j = 1; j < expected.gathered.size(); ++j) {
      block = std::max(block, expected.gathered[j]);
    }
    EXPECT_LE(
        memory.reduction + memory.full_gradients,
        std::max(
            expected.gathered[0] + 3 * block,
            2 * expected.gathered[0] + 2 * block));
    EXPECT_GT(memory.reduction + memory.full_gradients, 0);

    job.strategy = Strategy::kShardGradOp;
    std::int64_t all = 0;
    for (const std::int64_t bytes : expected.gathered) {
      all += bytes;
    }
    EXPECT_EQ(estimate_memory(model, job, cluster_of(1, size)).gathered, all);
    job.transport = Transport::kSharedMemory;
    const MemoryEstimate shared =
        estimate_memory(model, job, cluster_of(1, size));
    EXPECT_EQ(shared.shared_per_node, all);
    EXPECT_EQ(shared.gathered, 0);
    EXPECT_EQ(shared.parameters, memory.parameters);
  }
}

TEST(Memory, OfOptimizersAndMasterTypes) {
  const ModelShape model = uneven();
  const std::int64_t own = expect_of(model, 4, 4).own;
  Job job;
  job.optimizer = OptimizerKind::kSgd;
  EXPECT_EQ(estimate_memory(model, job, cluster_of(1, 4)).optimizer, 0);
  job.optimizer = OptimizerKind::kSgdMomentum;
  EXPECT_EQ(estimate_memory(model, job, cluster_of(1, 4)).optimizer, own * 4);
  job.precision = {
      .master = DType::kBFloat16,
      .compute = DType::kBFloat16,
      .reduce = DType::kBFloat16};
  const MemoryEstimate pure = estimate_memory(model, job, cluster_of(1, 4));
  EXPECT_EQ(pure.optimizer, own * 2);
  EXPECT_EQ(pure.parameters, own * 2);
}

TEST(Memory, NeverGrowsWithMoreRanksExceptByPadding) {
  const ModelShape models[]{gold(), uneven(), model_of(find_model("gpt2"))};
  for (const ModelShape& model : models) {
    for (const Runtime runtime : {Runtime::kLibfsdp, Runtime::kFsdp2}) {
      for (const Strategy strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp}) {
        Job job;
        job.runtime = runtime;
        job.strategy = strategy;
        job.precision = kBf16;
        MemoryEstimate before = estimate_memory(model, job, cluster_of(1, 1));
        for (std::int64_t ranks = 2; ranks <= 300; ++ranks) {
          const MemoryEstimate now =
              estimate_memory(model, job, cluster_of(1, ranks));
          EXPECT_LE(now.parameters, before.parameters) << ranks;
          EXPECT_LE(now.gradients, before.gradients) << ranks;
          EXPECT_LE(now.optimizer, before.optimizer) << ranks;
          EXPECT_LE(now.total() - now.padding, before.total() - before.padding)
              << model.name << " on " << ranks;
          before = now;
        }
        EXPECT_LT(
            before.parameters,
            estimate_memory(model, job, cluster_of(1, 1)).parameters);
      }
    }
  }
}

TEST(Memory, OfAccumulationWithoutSynchronisationHoldsWholeGradients) {
  const ModelShape model = uneven();
  Job job;
  job.precision = kBf16;
  job.accumulation = 4;
  const MemoryEstimate synced = estimate_memory(model, job, cluster_of(1, 8));
  // The sums so far, and in a backward its means apart from them.
  EXPECT_EQ(synced.gradients_at_loss, synced.parameters);
  EXPECT_EQ(synced.gradients, 2 * synced.parameters);
  job.runtime = Runtime::kFsdp2;
  EXPECT_EQ(
      estimate_memory(model, job, cluster_of(1, 8)).gradients,
      synced.parameters);
  job.runtime = Runtime::kLibfsdp;
  EXPECT_EQ(synced.full_gradients_at_loss, 0);
  job.sync_every_pass = false;
  const MemoryEstimate kept = estimate_memory(model, job, cluster_of(1, 8));
  // In the reduce type.
  EXPECT_EQ(kept.full_gradients_at_loss, 4 * model.num_params());
  EXPECT_EQ(kept.gradients_at_loss, 0);
  EXPECT_GT(kept.total(), synced.total());
}

TEST(Memory, MovesToTheHostWithOffload) {
  const ModelShape model = uneven();
  Job job;
  const MemoryEstimate device = estimate_memory(model, job, cluster_of(1, 8));
  job.cpu_offload = true;
  const MemoryEstimate host = estimate_memory(model, job, cluster_of(1, 8));
  EXPECT_EQ(host.parameters + host.gradients + host.optimizer, 0);
  EXPECT_EQ(host.host, device.parameters + device.gradients + device.optimizer);
  EXPECT_EQ(host.gathered, device.gathered);
  EXPECT_EQ(device.host, 0);
}

TEST(Memory, OfReplicasIsWhole) {
  const ModelShape model = uneven();
  Job job;
  job.strategy = Strategy::kNoShard;
  const MemoryEstimate memory = estimate_memory(model, job, cluster_of(1, 8));
  EXPECT_EQ(memory.parameters, 4 * model.num_params());
  EXPECT_EQ(memory.gathered, 0);
  job.precision = kBf16;
  EXPECT_GT(estimate_memory(model, job, cluster_of(1, 8)).gathered, 0);
  job.strategy = Strategy::kHybridShard;
  const MemoryEstimate hybrid = estimate_memory(model, job, cluster_of(4, 8));
  EXPECT_EQ(hybrid.parameters, 4 * expect_of(model, 8, 4).own);
}

TEST(Memory, AddsUpToTheWorseOfTwoMoments) {
  MemoryEstimate memory;
  memory.parameters = 1;
  memory.gradients = 2;
  memory.optimizer = 4;
  memory.padding = 8;
  memory.gathered = 16;
  memory.reduction = 32;
  memory.full_gradients = 64;
  memory.logits = 1000;
  memory.activations = 128;
  memory.working = 512;
  memory.overhead = 256;
  memory.shared_per_node = 5000;
  memory.host = 6000;
  EXPECT_EQ(memory.total_at_loss(), 1 + 4 + 8 + 16 + 256 + 128 + 1000);
  EXPECT_EQ(
      memory.total_in_backward(), 1 + 4 + 8 + 16 + 256 + 64 + 32 + 128 + 512);
  EXPECT_EQ(memory.total(), memory.total_at_loss());
  memory.logits = 0;
  EXPECT_EQ(memory.total(), memory.total_in_backward());
}

Cluster caching_cluster(std::int64_t per_node) {
  Cluster cluster = cluster_of(1, per_node);
  cluster.device.has_caching_allocator = true;
  return cluster;
}

TEST(Memory, ACachingAllocatorReservesLossAndBackwardApart) {
  const ModelShape model = model_of(find_model("llama2-7b"));
  const std::int64_t block = model.blocks[0].numel();
  Job job;
  job.precision = kBf16;
  job.runtime = Runtime::kFsdp2;
  job.micro_batch = 4;
  for (const auto checkpointing :
       {Checkpointing::kNone,
        Checkpointing::kSelective,
        Checkpointing::kFull}) {
    job.checkpointing = checkpointing;
    job.runtime = Runtime::kFsdp2;
    const MemoryEstimate plain = estimate_memory(model, job, cluster_of(1, 8));
    const MemoryEstimate caching =
        estimate_memory(model, job, caching_cluster(8));
    EXPECT_EQ(plain.overhead, 0);
    const std::int64_t units = 2 * (model.root.numel() + 2 * block);
    const std::int64_t head = 2 * 32'000 * 4096;
    const std::int64_t reductions = (2 + 2 * 4) * block;
    EXPECT_EQ(
        caching.total(),
        plain.parameters + plain.gradients + plain.optimizer + plain.padding +
            units + plain.activations + plain.logits + plain.working + head +
            reductions);
    EXPECT_EQ(caching.total() - caching.overhead, plain.total());
    // FSDP1: gradients and their reduction of one unit more.
    job.runtime = Runtime::kFsdp1;
    EXPECT_EQ(
        estimate_memory(model, job, caching_cluster(8)).total(),
        caching.total() + (2 + 4) * block);
  }
}

TEST(Memory, IsCrowdedWithinThreePercentOfTheDevice) {
  MemoryEstimate memory;
  memory.parameters = 970;
  Device device;
  device.memory_bytes = 1000;
  device.has_caching_allocator = true;
  EXPECT_FALSE(is_crowded(memory, device));
  memory.overhead = 1;
  EXPECT_TRUE(is_crowded(memory, device));
  device.has_caching_allocator = false;
  EXPECT_FALSE(is_crowded(memory, device));
  device = {};
  device.has_caching_allocator = true;
  EXPECT_FALSE(is_crowded(memory, device)) << "its memory is not known";
}

TEST(Memory, RefusesWhatCannotBeCounted) {
  Job job;
  job.seq_len = 1'000'000'000'000'000;
  testing::expect_throws<ConfigError>(
      [&] {
        estimate_memory(
            model_of(find_model("llama2-7b")), job, cluster_of(1, 8));
      },
      HasSubstr("the plan counts more than 9223372036854775807 bytes"));
}

} // namespace
} // namespace fsdp::plan
