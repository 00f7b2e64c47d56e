#pragma once
// What one step sends. A ring moves (n-1)/n of a tensor per rank and direction
// for a gather or a reduce-scatter, twice that for an all-reduce.

#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce };

std::string_view name_of(Collective collective);

/// One kind of collective of a step.
struct TrafficLine {
  Collective collective = Collective::kAllGather;
  std::int64_t group_size = 1;
  bool between_nodes = false;    ///< the group spans hosts
  std::int64_t calls = 0;        ///< a step
  std::int64_t tensor_bytes = 0; ///< whole tensors, all calls of a step
  /// Rank 0 sends so many over all calls of a step.
  std::int64_t sent_bytes = 0;
};

struct TrafficEstimate {
  std::vector<TrafficLine> lines;

  std::int64_t sent_bytes() const;
  /// Over a rank's link to other hosts: a ring over all ranks of several nodes
  /// enters and leaves a node once.
  std::int64_t sent_between_nodes() const;
};

TrafficEstimate estimate_traffic(
    const ModelShape& model, const Job& job, const Cluster& cluster);

} // namespace fsdp::plan
