#pragma once
// What one step sends. A ring moves (n-1)/n of a tensor per rank and direction
// for a gather or a reduce-scatter, twice that for an all-reduce. Where rows do
// not divide evenly, rank 0 has more than an n-th, and bytes are counted as
// Communicator's counters do: a gather sends the own piece to n-1 ranks, a
// reduce-scatter sends everything but the own piece.

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce };

std::string_view name_of(Collective collective);

/// What a collective moves.
enum class Payload : std::uint8_t {
  kParameters,
  kGradients,
  kPresence, ///< a byte a tensor at the end of a backward: which gradients
             ///< exist
};

std::string_view name_of(Payload payload);

/// One kind of collective of a step.
struct TrafficLine {
  Payload payload = Payload::kParameters;
  Collective collective = Collective::kAllGather;
  std::int64_t group_size = 1;
  bool between_nodes = false;      ///< the group spans hosts
  std::int64_t ranks_per_node = 1; ///< of the group, on one host
  std::int64_t calls = 0;          ///< a step
  std::int64_t tensor_bytes = 0;   ///< whole tensors, all calls of a step
  /// Rank 0 sends so many over all calls of a step.
  std::int64_t sent_bytes = 0;
};

struct TrafficEstimate {
  std::vector<TrafficLine> lines;

  std::int64_t sent_bytes() const;
  /// Over a rank's link to other hosts: a ring over all ranks of several nodes
  /// leaves a node once, over the links of all its ranks there.
  std::int64_t sent_between_nodes() const;
};

/// In which type a job's gradients travel to their owners.
DType gradient_wire(const Job& job);

/// Empty with shared memory, where ranks read each other's, and for one rank.
/// Throws ConfigError as check() does, and for what 64 bits cannot count.
TrafficEstimate estimate_traffic(
    const ModelShape& model, const Job& job, const Cluster& cluster);

} // namespace fsdp::plan
