#include "plan/job.h"

#include <gmock/gmock.h>

#include <functional>

#include "fsdp/error.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

Cluster cluster_of(std::int64_t nodes, std::int64_t per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = per_node;
  return cluster;
}

TEST(ShardRanks, DependOnTheStrategy) {
  const Cluster cluster = cluster_of(4, 8);
  const auto ranks = [&](Strategy strategy, std::int64_t size = 0) {
    Job job;
    job.strategy = strategy;
    job.shard_size = size;
    check(job, cluster);
    return shard_ranks(job, cluster);
  };
  EXPECT_EQ(ranks(Strategy::kNoShard), 1);
  EXPECT_EQ(ranks(Strategy::kShardGradOp), 32);
  EXPECT_EQ(ranks(Strategy::kFullShard), 32);
  EXPECT_EQ(ranks(Strategy::kHybridShard), 8);
  EXPECT_EQ(ranks(Strategy::kHybridShardZero2), 8);
  EXPECT_EQ(ranks(Strategy::kHybridShard, 16), 16);
  EXPECT_EQ(ranks(Strategy::kFullShard, 32), 32);
}

struct Wrong {
  std::function<void(Job&, Cluster&)> change;
  const char* text;
};

TEST(Check, RefusesWhatMakesNoJob) {
  const Wrong cases[]{
      {[](Job&, Cluster& c) { c.nodes = 0; },
       "the number of nodes is 0: expected 1 to 100000000"},
      {[](Job&, Cluster& c) { c.devices_per_node = -8; },
       "the number of devices of a node is -8: expected 1 to 100000000"},
      {[](Job&, Cluster& c) { c.nodes = INT64_MAX; },
       "the number of nodes is 9223372036854775807: expected 1 to 100000000"},
      {[](Job&, Cluster& c) { c.nodes = 50'000'000; },
       "50000000 nodes of 8 devices: expected at most 100000000 devices"},
      {[](Job& j, Cluster&) { j.shard_size = -1; },
       "the shard size is -1: expected 0 to 16"},
      {[](Job& j, Cluster&) {
         j.strategy = Strategy::kHybridShard;
         j.shard_size = 17;
       },
       "the shard size is 17: expected 0 to 16"},
      {[](Job& j, Cluster&) {
         j.strategy = Strategy::kHybridShard;
         j.shard_size = 6;
       },
       "a shard size of 6 does not divide the world of 16 ranks: choose a "
       "divisor of it"},
      {[](Job& j, Cluster&) { j.shard_size = 8; },
       "a shard size of 8 with strategy full_shard, which has 16 on 16 ranks: "
       "choose hybrid_shard or leave the shard size out"},
      {[](Job& j, Cluster&) {
         j.strategy = Strategy::kNoShard;
         j.shard_size = 16;
       },
       "a shard size of 16 with strategy no_shard, which has 1 on 16 ranks: "
       "choose hybrid_shard or leave the shard size out"},
      {[](Job& j, Cluster&) { j.transport = Transport::kSharedMemory; },
       "shared memory joins the ranks of one node, got 2 nodes: choose "
       "collectives"},
      {[](Job& j, Cluster& c) {
         c.nodes = 1;
         j.transport = Transport::kSharedMemory;
         j.runtime = Runtime::kFsdp2;
       },
       "shared memory with runtime fsdp2: expected libfsdp"},
      {[](Job& j, Cluster& c) {
         c.nodes = 1;
         j.transport = Transport::kSharedMemory;
         j.strategy = Strategy::kNoShard;
       },
       "shared memory with strategy no_shard: expected full_shard or "
       "shard_grad_op"},
      {[](Job& j, Cluster&) { j.precision.compute = DType::kInt8; },
       "a precision of int8: expected float64, float32, bfloat16 or float16"},
      {[](Job& j, Cluster&) { j.micro_batch = 0; },
       "the micro-batch is 0: expected 1 to 1000000000000000"},
      {[](Job& j, Cluster&) { j.seq_len = -2; },
       "the sequence length is -2: expected 1 to 1000000000000000"},
      {[](Job& j, Cluster&) { j.accumulation = 0; },
       "the accumulation is 0: expected 1 to 1000000000000000"},
      {[](Job& j, Cluster&) { j.prefetch_depth = -1; },
       "the prefetch depth is -1: expected 0 to 1000000"},
      {[](Job& j, Cluster&) { j.checkpointed_blocks = -1; },
       "the number of checkpointed blocks is -1: expected 0 to 1000000"},
      {[](Job& j, Cluster&) { j.logit_metrics = 1001; },
       "the number of metrics is 1001: expected 0 to 1000"},
      {[](Job& j, Cluster&) { j.micro_batch = 1'000'000'000'000; },
       "a micro-batch of 1000000000000 sequences of 2048 tokens: expected at "
       "most 1000000000000000 tokens"}};
  for (const Wrong& c : cases) {
    Job job;
    Cluster cluster = cluster_of(2, 8);
    c.change(job, cluster);
    testing::expect_throws<ConfigError>([&] { check(job, cluster); }, c.text);
  }
}

} // namespace
} // namespace fsdp::plan
