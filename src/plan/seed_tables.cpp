#include "plan/seed_tables.h"

#include <array>

#include "plan/catalog.h"
#include "plan/model.h"

namespace fsdp::plan {

namespace {

constexpr double kFp32 = 4;
constexpr double kGiga = 1e9;
constexpr std::array kStrategies{
    Strategy::kNoShard, Strategy::kShardGradOp, Strategy::kFullShard};

SeedModel seed_model() {
  const ModelShape model = model_of(find_model("seed"));
  SeedModel seed;
  seed.num_params = model.num_params();
  seed.num_tensors = static_cast<std::int64_t>(model.root.params.size());
  for (const UnitShape& block : model.blocks) {
    seed.num_tensors += static_cast<std::int64_t>(block.params.size());
  }
  seed.fp32_bytes = kFp32 * static_cast<double>(seed.num_params);
  seed.with_adam_bytes = 4 * seed.fp32_bytes;
  return seed;
}

SeedBlocks seed_blocks() {
  constexpr double kNumParams = 7e9;
  constexpr double kBlockParams = 220e6; // as the document rounds it
  const SeedTraffic full = seed_traffic(kNumParams, Strategy::kFullShard);
  const SeedTraffic ddp = seed_traffic(kNumParams, Strategy::kNoShard);
  SeedBlocks blocks;
  blocks.bytes_per_param = 4 * kFp32;
  blocks.total_gb = blocks.bytes_per_param * kNumParams / kGiga;
  blocks.per_rank_gb = blocks.total_gb / 8;
  blocks.block_params = kBlockParams;
  blocks.block_gb = 2 * kBlockParams / kGiga;
  blocks.traffic_over_ddp = full.ring / ddp.ring;
  return blocks;
}

} // namespace

SeedMemory seed_memory(
    double num_params, Strategy strategy, std::int64_t gpus) {
  const double whole = kFp32 * num_params;
  const double part = whole / static_cast<double>(gpus);
  const bool shards_gradients = strategy != Strategy::kNoShard;
  const bool shards_parameters =
      shards_gradients && strategy != Strategy::kShardGradOp;
  SeedMemory memory;
  memory.strategy = strategy;
  memory.gpus = gpus;
  memory.parameters = shards_parameters ? part : whole;
  memory.gradients = shards_gradients ? part : whole;
  memory.optimizer = 2 * memory.gradients;
  return memory;
}

SeedTraffic seed_traffic(double num_params, Strategy strategy) {
  const double whole = kFp32 * num_params;
  const double share =
      static_cast<double>(kSeedRing - 1) / static_cast<double>(kSeedRing);
  // full_shard: two gathers and a reduce-scatter. shard_grad_op: the documents
  // count the reduce-scatter alone; parameters that are updated in parts must
  // be gathered once, too. no_shard: an all-reduce is two of them.
  const double collectives = strategy == Strategy::kFullShard ? 3 : 1;
  const double ring_parts = strategy == Strategy::kFullShard ? 3 : 2;
  SeedTraffic traffic;
  traffic.strategy = strategy;
  traffic.counted = collectives * 2 * whole;
  traffic.ring = ring_parts * share * whole;
  return traffic;
}

SeedAdvice seed_advice(double num_params, std::int64_t gpus, double memory_gb) {
  const auto state_gb = [&](Strategy strategy) {
    return seed_memory(num_params, strategy, gpus).total() / kGiga;
  };
  SeedAdvice advice;
  advice.num_params = num_params;
  advice.gpus = gpus;
  advice.memory_gb = memory_gb;
  advice.no_shard_gb = state_gb(Strategy::kNoShard);
  advice.shard_grad_op_gb = state_gb(Strategy::kShardGradOp);
  advice.full_shard_gb = state_gb(Strategy::kFullShard);
  if (advice.no_shard_gb <= memory_gb) {
    advice.recommendation = "NO_SHARD";
    advice.reason = "use DDP for simplicity";
  } else if (advice.shard_grad_op_gb <= memory_gb) {
    advice.recommendation = "SHARD_GRAD_OP";
    advice.reason = "moderate savings, less communication";
  } else if (advice.full_shard_gb <= memory_gb) {
    advice.recommendation = "FULL_SHARD";
    advice.reason = "maximum memory reduction";
  } else {
    advice.recommendation = "FULL_SHARD + CPU offload";
    advice.reason = "model may still not fit";
  }
  return advice;
}

SeedTables seed_tables() {
  SeedTables tables;
  tables.model = seed_model();
  const auto num_params = static_cast<double>(tables.model.num_params);
  for (const Strategy strategy : kStrategies) {
    for (const std::int64_t gpus : {1, 4, 8, 16}) {
      tables.memory.push_back(seed_memory(num_params, strategy, gpus));
    }
    tables.traffic.push_back(seed_traffic(num_params, strategy));
  }
  tables.advice = {
      seed_advice(7e9, 8, 80),
      seed_advice(13e9, 8, 40),
      seed_advice(70e9, 8, 80),
      seed_advice(70e9, 32, 80),
      seed_advice(175e9, 64, 80)};
  tables.blocks = seed_blocks();
  return tables;
}

} // namespace fsdp::plan
