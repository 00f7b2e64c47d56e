#pragma once
// What is to be planned: how a model is sharded, on how many devices, in which
// types, and what one step takes.

#include <cstdint>
#include <string_view>

#include "core/dtype.h"
#include "plan/device.h"

namespace fsdp::plan {

/// FSDP1's names; FSDP2 has them as reshard_after_forward and a 2-D mesh.
enum class Strategy : std::uint8_t {
  kNoShard,     ///< replicas (DDP)
  kShardGradOp, ///< ZeRO-2: parameters stay gathered from forward to backward
  kFullShard,   ///< ZeRO-3
  kHybridShard, ///< kFullShard in a group, replicas between groups
  kHybridShardZero2 ///< kShardGradOp in a group, replicas between groups
};

enum class Checkpointing : std::uint8_t {
  kNone,
  kSelective, ///< results of matrix products and attention are kept
  kFull,      ///< only each block's input is kept
};

enum class OptimizerKind : std::uint8_t { kAdamW, kSgd, kSgdMomentum };

/// How gathers and reductions move.
enum class Transport : std::uint8_t {
  kCollectives,  ///< messages between ranks (NCCL, Gloo)
  kSharedMemory, ///< libfsdp's published copy on one host
};

/// Whose buffers and messages are counted.
enum class Runtime : std::uint8_t {
  kLibfsdp, ///< uneven pieces; gradients travel in the compute dtype where the
            ///< sum widens them
  kFsdp2,   ///< PyTorch over NCCL: pieces padded to equal sizes, gradients
            ///< travel in the reduce dtype, gathers are copied out
  kFsdp1,   ///< counted as kFsdp2, but the memory of a unit that is done with
            ///< comes back one unit later
};

struct Precision {
  DType master = DType::kFloat32;  ///< of shards, gradients, optimizer state
  DType compute = DType::kFloat32; ///< of gathered parameters and activations
  DType reduce = DType::kFloat32;  ///< of the gradients' reduction
  bool fp8_matmuls = false; ///< of linear layers; everything else in `compute`
};

struct Cluster {
  Device device;
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;

  std::int64_t world_size() const { return nodes * devices_per_node; }
};

struct Job {
  Strategy strategy = Strategy::kFullShard;
  /// Ranks that share one copy of the parameters; only hybrid strategies may
  /// have less than the world. 0: a node's devices for hybrid strategies, one
  /// for kNoShard, else the world.
  std::int64_t shard_size = 0;
  Precision precision;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Transport transport = Transport::kCollectives;
  Runtime runtime = Runtime::kLibfsdp;
  bool cpu_offload = false; ///< shards, gradients, optimizer on the host

  std::int64_t micro_batch = 1; ///< sequences of a rank and pass
  std::int64_t seq_len = 2048;
  std::int64_t accumulation = 1; ///< passes of a step
  /// false: only the last pass reduces, the others keep whole gradients.
  bool sync_every_pass = true;

  Checkpointing checkpointing = Checkpointing::kNone;
  /// Of the first so many blocks only; 0: of all.
  std::int64_t checkpointed_blocks = 0;
  bool fused_attention = true; ///< no matrix of seq x seq is kept
  int flash_generation = 2;    ///< of fused attention: FlashAttention 1 or 2
  bool compiled = false;       ///< elementwise operations are fused
  bool fused_loss =
      false; ///< one kernel on the logits, no copy of them in fp32
  /// Metrics of every pass, each of which reads the logits as a plain loss does
  /// (llm-foundry: cross entropy and perplexity).
  int logit_metrics = 0;
  /// Units gathered ahead of the one that computes; 0: none.
  int prefetch_depth = 1;
};

/// Whether parameters stay gathered from the forward to the backward.
bool keeps_gathered(Strategy strategy);

/// The ranks that share one copy: shard_size with its default filled in.
std::int64_t shard_ranks(const Job& job, const Cluster& cluster);

/// Throws ConfigError, one line with what was got and what is expected, for
/// what makes no job: counts that are not positive, a world that overflows,
/// shard_size that does not divide the world, or that differs from the world
/// without a hybrid strategy, shared memory over several nodes, ...
void check(const Job& job, const Cluster& cluster);

/// Whether `checkpointing` applies to the block of this index.
bool is_checkpointed(const Job& job, std::int64_t block);

std::string_view name_of(Strategy strategy); ///< "full_shard", ...
std::string_view name_of(Checkpointing checkpointing);
std::string_view name_of(OptimizerKind optimizer);
std::string_view name_of(Runtime runtime);
std::string_view name_of(Transport transport);

} // namespace fsdp::plan
