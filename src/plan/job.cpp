#include "plan/job.h"

#include <string>

#include "fsdp/error.h"

namespace fsdp::plan {

namespace {

// Frontier and the largest announced clusters have tens of thousands.
constexpr std::int64_t kMostDevices = 100'000'000;
constexpr std::int64_t kMostTokens = 1'000'000'000'000'000;

bool is_hybrid(Strategy strategy) {
  return strategy == Strategy::kHybridShard ||
         strategy == Strategy::kHybridShardZero2;
}

void check_between(
    const std::string& what,
    std::int64_t value,
    std::int64_t least,
    std::int64_t most) {
  if (value < least || value > most) {
    throw ConfigError(
        what + " is " + std::to_string(value) + ": expected " +
        std::to_string(least) + " to " + std::to_string(most));
  }
}

void check_cluster(const Cluster& cluster) {
  check_between("the number of nodes", cluster.nodes, 1, kMostDevices);
  check_between(
      "the number of devices of a node",
      cluster.devices_per_node,
      1,
      kMostDevices);
  if (cluster.nodes > kMostDevices / cluster.devices_per_node) {
    throw ConfigError(
        std::to_string(cluster.nodes) + " nodes of " +
        std::to_string(cluster.devices_per_node) +
        " devices: expected at most " + std::to_string(kMostDevices) +
        " devices");
  }
}

void check_mesh(const Job& job, const Cluster& cluster) {
  const std::int64_t world = cluster.world_size();
  const std::int64_t shard = shard_ranks(job, cluster);
  const std::string size = "a shard size of " + std::to_string(shard);
  check_between("the shard size", job.shard_size, 0, world);
  if (world % shard != 0) {
    throw ConfigError(
        size + " does not divide the world of " + std::to_string(world) +
        " ranks: choose a divisor of it");
  }
  if (is_hybrid(job.strategy)) {
    return;
  }
  const std::int64_t expected = job.strategy == Strategy::kNoShard ? 1 : world;
  if (shard != expected) {
    throw ConfigError(
        size + " with strategy " + std::string(name_of(job.strategy)) +
        ", which has " + std::to_string(expected) + " on " +
        std::to_string(world) +
        " ranks: choose hybrid_shard or leave the shard size out");
  }
}

void check_transport(const Job& job, const Cluster& cluster) {
  if (job.transport != Transport::kSharedMemory) {
    return;
  }
  if (cluster.nodes > 1) {
    throw ConfigError(
        "shared memory joins the ranks of one node, got " +
        std::to_string(cluster.nodes) + " nodes: choose collectives");
  }
  if (job.runtime != Runtime::kLibfsdp) {
    throw ConfigError(
        "shared memory with runtime " + std::string(name_of(job.runtime)) +
        ": expected libfsdp");
  }
  if (job.strategy != Strategy::kFullShard &&
      job.strategy != Strategy::kShardGradOp) {
    throw ConfigError(
        "shared memory with strategy " + std::string(name_of(job.strategy)) +
        ": expected full_shard or shard_grad_op");
  }
}

void check_precision(const Precision& precision) {
  for (const DType dtype :
       {precision.master, precision.compute, precision.reduce}) {
    if (!is_real_floating(dtype)) {
      throw ConfigError(
          "a precision of " + std::string(name_of(dtype)) +
          ": expected float64, float32, bfloat16 or float16");
    }
  }
}

} // namespace

bool keeps_gathered(Strategy strategy) {
  return strategy == Strategy::kShardGradOp ||
         strategy == Strategy::kHybridShardZero2;
}

std::int64_t shard_ranks(const Job& job, const Cluster& cluster) {
  if (job.shard_size > 0) {
    return job.shard_size;
  }
  if (job.strategy == Strategy::kNoShard) {
    return 1;
  }
  return is_hybrid(job.strategy) ? cluster.devices_per_node
                                 : cluster.world_size();
}

void check(const Job& job, const Cluster& cluster) {
  check_cluster(cluster);
  check_mesh(job, cluster);
  check_transport(job, cluster);
  check_precision(job.precision);
  check_between("the micro-batch", job.micro_batch, 1, kMostTokens);
  check_between("the sequence length", job.seq_len, 1, kMostTokens);
  check_between("the accumulation", job.accumulation, 1, kMostTokens);
  check_between("the prefetch depth", job.prefetch_depth, 0, 1'000'000);
  check_between(
      "the number of checkpointed blocks",
      job.checkpointed_blocks,
      0,
      1'000'000);
  check_between("the number of metrics", job.logit_metrics, 0, 1'000);
  if (job.micro_batch > kMostTokens / job.seq_len) {
    throw ConfigError(
        "a micro-batch of " + std::to_string(job.micro_batch) +
        " sequences of " + std::to_string(job.seq_len) +
        " tokens: expected at most " + std::to_string(kMostTokens) + " tokens");
  }
}

bool is_checkpointed(const Job& job, std::int64_t block) {
  return job.checkpointing != Checkpointing::kNone &&
         (job.checkpointed_blocks == 0 || block < job.checkpointed_blocks);
}

std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kNoShard:
      return "no_shard";
    case Strategy::kShardGradOp:
      return "shard_grad_op";
    case Strategy::kFullShard:
      return "full_shard";
    case Strategy::kHybridShard:
      return "hybrid_shard";
    case Strategy::kHybridShardZero2:
      return "hybrid_shard_zero2";
  }
  return "unknown";
}

std::string_view name_of(Checkpointing checkpointing) {
  switch (checkpointing) {
    case Checkpointing::kNone:
      return "none";
    case Checkpointing::kSelective:
      return "selective";
    case Checkpointing::kFull:
      return "full";
  }
  return "unknown";
}

std::string_view name_of(Runtime runtime) {
  switch (runtime) {
    case Runtime::kLibfsdp:
      return "libfsdp";
    case Runtime::kFsdp2:
      return "fsdp2";
    case Runtime::kFsdp1:
      return "fsdp1";
  }
  return "unknown";
}

std::string_view name_of(Transport transport) {
  return transport == Transport::kSharedMemory ? "shm" : "collectives";
}

std::string_view name_of(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kSgdMomentum:
      return "sgd_momentum";
  }
  return "unknown";
}

} // namespace fsdp::plan
