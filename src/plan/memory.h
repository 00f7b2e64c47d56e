#pragma once
// Bytes on the rank that has most (rank 0), by component. What the runtime
// allocates by rule is exact: parameters, gradients, optimizer state, gathered
// units, reductions. Logits, activations, working memory and overhead are
// estimates (docs/planner.md has their formulas and errors).

#include <array>
#include <cstdint>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

struct MemoryEstimate {
  std::int64_t parameters = 0; ///< the rank's shards, master type
  std::int64_t gradients = 0;  ///< of the shards
  std::int64_t optimizer = 0;  ///< AdamW: 2 a parameter, 4 bytes a tensor
  /// What even shards add over these rows: gathers of equal pieces round every
  /// parameter up to shard_ranks rows (FSDP2). libfsdp gathers uneven pieces
  /// and adds none.
  std::int64_t padding = 0;
  std::int64_t gathered = 0;       ///< peak: root, current and prefetched units
  std::int64_t reduction = 0;      ///< peak of the buffers of reductions
  std::int64_t full_gradients = 0; ///< not yet reduced: of one unit, or of all
                                   ///< while passes are not synchronised
  std::int64_t logits = 0;         ///< with their gradient and the loss in fp32
  std::int64_t activations = 0;    ///< kept from the forward to the backward
  std::int64_t working = 0;        ///< of one block while its backward runs
  /// What a caching allocator reserves beyond the bytes in use: it gives the
  /// segments of logits to nothing of another size, so that the loss and a
  /// block's backward never share memory. Without the device's context and the
  /// communicator's buffers, which its counters do not see.
  std::int64_t overhead = 0;
  /// A published copy in the host's memory, all ranks of the host together.
  std::int64_t shared_per_node = 0;
  std::int64_t host = 0; ///< of the rank, with cpu_offload
  /// Of gradients and full_gradients: what earlier passes of the step have left
  /// when the last one computes its loss.
  std::int64_t gradients_at_loss = 0;
  std::int64_t full_gradients_at_loss = 0;

  /// At the end of a pass's forward: activations and logits are there.
  std::int64_t total_at_loss() const;
  /// While units are reduced: activations go as gradients come.
  std::int64_t total_in_backward() const;
  /// Bytes of the device at the worst moment.
  std::int64_t total() const;
};

/// A component of what the device holds. Those of a moment add up to
/// total_at_loss() or total_in_backward().
struct MemoryPart {
  const char* name;   ///< that of its field
  std::int64_t bytes; ///< at its own peak
  std::int64_t at_loss;
  std::int64_t in_backward;
};

std::array<MemoryPart, 11> parts_of(const MemoryEstimate& memory);

/// What a job may take of the device: its memory, less what a caching allocator
/// needs to work without freeing segments. 0 where its memory is not known.
double usable_bytes(const Device& device);

/// Whether a plan comes so near to the device's memory that the caching
/// allocator frees segments and asks again, which takes time that no estimate
/// has. False where the device's memory is not known.
bool is_crowded(const MemoryEstimate& memory, const Device& device);

/// Throws ConfigError as check() does, and for what 64 bits cannot count.
MemoryEstimate estimate_memory(
    const ModelShape& model, const Job& job, const Cluster& cluster);

} // namespace fsdp::plan
