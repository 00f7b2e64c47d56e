#pragma once
// The calculators of the project's source documents: bytes of fp32 training
// with Adam, as if parameters divided evenly and nothing else took memory. They
// are kept beside the planner for comparison; a plan uses none of them.

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/job.h"

namespace fsdp::plan {

/// Bytes of a rank.
struct SeedMemory {
  Strategy strategy = Strategy::kNoShard;
  std::int64_t gpus = 1;
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;

  double total() const { return parameters + gradients + optimizer; }
};

/// Bytes of a step.
struct SeedTraffic {
  Strategy strategy = Strategy::kNoShard;
  /// The documents' count: two copies of the parameters for each collective.
  double counted = 0;
  /// What a rank sends in a ring of 8: (n-1)/n of a copy for a gather or a
  /// reduce-scatter, twice that for an all-reduce.
  double ring = 0;
};

struct SeedAdvice {
  double num_params = 0;
  std::int64_t gpus = 1;
  double memory_gb = 0;   ///< of a device
  double no_shard_gb = 0; ///< of model state, a rank
  double shard_grad_op_gb = 0;
  double full_shard_gb = 0;
  std::string_view recommendation;
  std::string_view reason;
};

/// "In depth": a model of 7 B parameters in 32 blocks.
struct SeedBlocks {
  double bytes_per_param = 0;
  double total_gb = 0;
  double per_rank_gb = 0; ///< on 8
  double block_params = 0;
  double block_gb = 0;         ///< in bf16
  double traffic_over_ddp = 0; ///< full_shard's over an all-reduce's
};

struct SeedModel {
  std::int64_t num_params = 0;
  std::int64_t num_tensors = 0;
  double fp32_bytes = 0;
  double with_adam_bytes = 0;
};

constexpr std::int64_t kSeedRing = 8; ///< ranks of SeedTraffic::ring

SeedMemory seed_memory(double num_params, Strategy strategy, std::int64_t gpus);
SeedTraffic seed_traffic(double num_params, Strategy strategy);
SeedAdvice seed_advice(double num_params, std::int64_t gpus, double memory_gb);

/// Every row that the documents print.
struct SeedTables {
  SeedModel model;
  std::vector<SeedMemory> memory;
  std::vector<SeedTraffic> traffic;
  std::vector<SeedAdvice> advice;
  SeedBlocks blocks;
};

SeedTables seed_tables();

} // namespace fsdp::plan
