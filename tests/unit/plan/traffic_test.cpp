// What a step sends, against every rank's pieces counted one by one.

#include "plan/traffic.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "fsdp/error.h"
#include "models.h"
#include "plan/catalog.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

using ::testing::HasSubstr;

/// Elements of a unit that each rank owns: rows dealt out in chunks until they
/// are gone.
std::vector<std::int64_t> pieces_of(const UnitShape& unit, std::int64_t size) {
  std::vector<std::int64_t> pieces(static_cast<std::size_t>(size), 0);
  for (const ParamShape& param : unit.params) {
    std::int64_t chunk = 1;
    while (chunk * size < param.rows()) {
      ++chunk;
    }
    std::int64_t left = param.rows();
    for (std::int64_t& piece : pieces) {
      const std::int64_t rows = std::min(left, chunk);
      piece += rows * (param.numel() / param.rows());
      left -= rows;
    }
  }
  return pieces;
}

struct Sent {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
};

/// Rank 0 hands its piece to each other rank.
void gather(Sent& sent, const UnitShape& unit, std::int64_t size, int element) {
  if (unit.params.empty()) {
    return;
  }
  const auto pieces = pieces_of(unit, size);
  for (std::int64_t peer = 1; peer < size; ++peer) {
    sent.bytes += pieces[0] * element;
  }
  ++sent.calls;
}

/// Rank 0 hands each other rank that rank's piece.
void scatter(
    Sent& sent, const UnitShape& unit, std::int64_t size, int element) {
  if (unit.params.empty()) {
    return;
  }
  const auto pieces = pieces_of(unit, size);
  for (std::size_t peer = 1; peer < pieces.size(); ++peer) {
    sent.bytes += pieces[peer] * element;
  }
  ++sent.calls;
}

struct Step {
  Sent gathers;
  Sent reductions;
};

/// A step as the runtime makes it.
Step step_of(
    const ModelShape& model,
    const Job& job,
    std::int64_t size,
    int compute,
    int wire) {
  Step step;
  for (std::int64_t pass = 0; pass < job.accumulation; ++pass) {
    const bool reduces = job.sync_every_pass || pass + 1 == job.accumulation;
    gather(step.gathers, model.root, size, compute);
    for (const UnitShape& block : model.blocks) {
      gather(step.gathers, block, size, compute);
    }
    for (const UnitShape& block : model.blocks) {
      if (job.strategy == Strategy::kFullShard) {
        gather(step.gathers, block, size, compute);
      }
      if (reduces) {
        scatter(step.reductions, block, size, wire);
      }
    }
    if (reduces) {
      scatter(step.reductions, model.root, size, wire);
    }
  }
  return step;
}

Sent line_of(
    const TrafficEstimate& traffic, Collective collective, Payload payload) {
  Sent sent;
  for (const TrafficLine& line : traffic.lines) {
    if (line.collective == collective && line.payload == payload) {
      sent.calls += line.calls;
      sent.bytes += line.sent_bytes;
    }
  }
  return sent;
}

constexpr auto kGather = Collective::kAllGather;
constexpr auto kScatter = Collective::kReduceScatter;

TEST(Traffic, OfTheGoldModelIsCountedByHand) {
  // 18 numbers on rank 0 of 2 and 14 on rank 1; nothing is padded.
  Job job;
  const auto traffic = [&] {
    return estimate_traffic(gold(), job, cluster_of(1, 2));
  };
  Sent gathers = line_of(traffic(), kGather, Payload::kParameters);
  Sent reductions = line_of(traffic(), kScatter, Payload::kGradients);
  EXPECT_EQ(gathers.calls, 2);
  EXPECT_EQ(gathers.bytes, 2 * 18 * 4);
  EXPECT_EQ(reductions.calls, 1);
  EXPECT_EQ(reductions.bytes, 14 * 4);
  const Sent presence = line_of(traffic(), kGather, Payload::kPresence);
  EXPECT_EQ(presence.calls, 1);
  EXPECT_EQ(presence.bytes, 4); // a byte a tensor
  EXPECT_EQ(traffic().sent_bytes(), 2 * 18 * 4 + 14 * 4 + 4);
  EXPECT_EQ(traffic().sent_between_nodes(), 0);

  job.strategy = Strategy::kShardGradOp;
  gathers = line_of(traffic(), kGather, Payload::kParameters);
  reductions = line_of(traffic(), kScatter, Payload::kGradients);
  EXPECT_EQ(gathers.calls, 1);
  EXPECT_EQ(reductions.calls, 1);
}

TEST(Traffic, OfPaddedPiecesIsARings) {
  // 36 numbers for 32 on 2 ranks, 80 on 8: every rank's piece is rank 0's.
  Job job;
  job.runtime = Runtime::kFsdp2;
  for (const auto& [ranks, padded] :
       {std::pair<std::int64_t, std::int64_t>{2, 36}, {8, 80}}) {
    const auto traffic = estimate_traffic(gold(), job, cluster_of(1, ranks));
    ASSERT_EQ(traffic.lines.size(), 2U) << "FSDP2 gathers no presence";
    EXPECT_EQ(traffic.lines[0].tensor_bytes, 2 * padded * 4);
    EXPECT_EQ(
        traffic.lines[0].sent_bytes, 2 * padded * 4 / ranks * (ranks - 1));
    EXPECT_EQ(traffic.lines[1].tensor_bytes, padded * 4);
    EXPECT_EQ(traffic.lines[1].sent_bytes, padded * 4 / ranks * (ranks - 1));
  }
}

TEST(Traffic, IsTheSumOfEveryRanksPieces) {
  std::mt19937 random(7);
  const ModelShape models[]{gold(), uneven(), model_of(find_model("bytes"))};
  for (int i = 0; i < 300; ++i) {
    const ModelShape& model = models[random() % 3];
    const auto size = static_cast<std::int64_t>(1 + random() % 20);
    Job job;
    job.strategy = random() % 2 ? Strategy::kFullShard : Strategy::kShardGradOp;
    job.accumulation = 1 + random() % 3;
    job.sync_every_pass = random() % 2 == 0;
    const bool half = random() % 2 == 0;
    if (half) {
      job.precision = kBf16;
    }
    const bool kept = !job.sync_every_pass && job.accumulation > 1;
    const Step step =
        step_of(model, job, size, half ? 2 : 4, half && !kept ? 2 : 4);
    const auto traffic = estimate_traffic(model, job, cluster_of(1, size));
    const Sent gathers = line_of(traffic, kGather, Payload::kParameters);
    const Sent reductions = line_of(traffic, kScatter, Payload::kGradients);
    EXPECT_EQ(gathers.bytes, step.gathers.bytes) << model.name << size;
    EXPECT_EQ(reductions.bytes, step.reductions.bytes) << model.name << size;
    if (size > 1) {
      EXPECT_EQ(gathers.calls, step.gathers.calls);
      EXPECT_EQ(reductions.calls, step.reductions.calls);
      EXPECT_EQ(
          line_of(traffic, kGather, Payload::kPresence).calls,
          job.accumulation);
    } else {
      EXPECT_TRUE(traffic.lines.empty());
    }
  }
}

TEST(Traffic, IsTheRingFormulaWhereRowsDivide) {
  const ModelShape model = model_of(find_model("llama2-7b"));
  const std::int64_t params = model.num_params();
  const std::int64_t root = model.root.numel();
  for (const std::int64_t ranks : {2, 4, 8, 16, 32, 64, 128, 256}) {
    Job job;
    job.precision = kBf16;
    const auto traffic = estimate_traffic(model, job, cluster_of(1, ranks));
    EXPECT_EQ(
        line_of(traffic, kGather, Payload::kParameters).bytes,
        2 * (2 * params - root) / ranks * (ranks - 1));
    EXPECT_EQ(
        line_of(traffic, kScatter, Payload::kGradients).bytes,
        2 * params / ranks * (ranks - 1));
    job.strategy = Strategy::kNoShard;
    const auto replicas = estimate_traffic(model, job, cluster_of(1, ranks));
    EXPECT_EQ(replicas.sent_bytes(), 2 * 4 * params / ranks * (ranks - 1));
  }
}

TEST(Traffic, OfHybridShardsStaysInTheNodeButForTheReplicas) {
  const ModelShape model = model_of(find_model("llama2-7b"));
  Job job;
  job.strategy = Strategy::kHybridShard;
  job.precision = kBf16;
  const auto traffic = estimate_traffic(model, job, cluster_of(4, 8));
  std::int64_t between = 0;
  for (const TrafficLine& line : traffic.lines) {
    const bool replicas = line.collective == Collective::kAllReduce;
    EXPECT_EQ(line.between_nodes, replicas);
    EXPECT_EQ(line.group_size, replicas ? 4 : 8);
    EXPECT_EQ(line.ranks_per_node, replicas ? 1 : 8);
    between += replicas ? line.sent_bytes : 0;
  }
  // An eighth of the model in float32, twice 3/4 of it.
  EXPECT_EQ(between, model.num_params() / 8 * 4 * 2 * 3 / 4);
  EXPECT_EQ(traffic.sent_between_nodes(), between);
}

TEST(Traffic, LeavesANodeOnceARing) {
  const ModelShape model = model_of(find_model("llama2-7b"));
  Job job;
  const auto traffic = estimate_traffic(model, job, cluster_of(2, 8));
  std::int64_t sum = 0;
  for (const TrafficLine& line : traffic.lines) {
    EXPECT_TRUE(line.between_nodes);
    EXPECT_EQ(line.ranks_per_node, 8);
    sum += line.sent_bytes / 8;
  }
  EXPECT_EQ(traffic.sent_between_nodes(), sum);
  // Groups of two nodes: 8 ranks of each are in one.
  job.strategy = Strategy::kHybridShard;
  job.shard_size = 16;
  for (const TrafficLine& line :
       estimate_traffic(model, job, cluster_of(4, 8)).lines) {
    EXPECT_TRUE(line.between_nodes);
    EXPECT_EQ(
        line.ranks_per_node, line.collective == Collective::kAllReduce ? 1 : 8);
  }
  // Two replicas in a node: half of the node's ranks each.
  job.shard_size = 4;
  for (const TrafficLine& line :
       estimate_traffic(model, job, cluster_of(2, 8)).lines) {
    const bool replicas = line.collective == Collective::kAllReduce;
    EXPECT_EQ(line.between_nodes, replicas);
    EXPECT_EQ(line.ranks_per_node, replicas ? 2 : 4);
  }
}

TEST(Traffic, IsNoneInSharedMemory) {
  Job job;
  job.transport = Transport::kSharedMemory;
  EXPECT_TRUE(estimate_traffic(uneven(), job, cluster_of(1, 8)).lines.empty());
}

TEST(GradientWire, IsTheComputeTypeWhereTheSumWidens) {
  Job job;
  job.precision = kBf16;
  EXPECT_EQ(gradient_wire(job), DType::kBFloat16);
  job.runtime = Runtime::kFsdp2;
  EXPECT_EQ(gradient_wire(job), DType::kFloat32);
  job.runtime = Runtime::kLibfsdp;
  job.accumulation = 2;
  EXPECT_EQ(gradient_wire(job), DType::kBFloat16);
  job.sync_every_pass = false;
  EXPECT_EQ(gradient_wire(job), DType::kFloat32);
  job = {};
  job.precision.reduce = DType::kBFloat16; // narrower than what it sums
  EXPECT_EQ(gradient_wire(job), DType::kBFloat16);
}

TEST(Traffic, RefusesWhatCannotBeCounted) {
  Job job;
  job.accumulation = 1'000'000'000'000'000;
  testing::expect_throws<ConfigError>(
      [&] {
        estimate_traffic(
            model_of(find_model("llama3-405b")), job, cluster_of(2, 8));
      },
      HasSubstr("the plan counts more than 9223372036854775807 bytes"));
  testing::expect_throws<ConfigError>(
      [&] { estimate_traffic(gold(), {}, cluster_of(0, 8)); },
      "the number of nodes is 0: expected 1 to 100000000");
}

} // namespace
} // namespace fsdp::plan
