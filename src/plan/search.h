#pragma once
// The fastest plan that fits: every strategy, shape of a hybrid mesh,
// micro-batch, accumulation, checkpointing and prefetch depth that gives the
// global batch, simulated.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/memory.h"
#include "plan/model.h"
#include "plan/simulate.h"

namespace fsdp::plan {

using MemoryModel = std::function<MemoryEstimate(
    const ModelShape&, const Job&, const Cluster&)>;

struct SearchRequest {
  ModelShape model;
  Cluster cluster;
  /// Precision, optimizer, transport, offload, sequence length, attention and
  /// compiler are kept; the rest is searched.
  Job base;
  std::int64_t global_batch = 0; ///< sequences of a step, all ranks together
};

struct PlannedJob {
  Job job; ///< shard_size filled in
  MemoryEstimate memory;
  bool fits = false;
  /// Without events. Of what does not fit: all zeros.
  SimulatedStep step;
  Throughput throughput;
  /// "7 % slower: 12 ms more exposed communication", "needs 3.1 GB more than
  /// the device has, most of it activations"; empty for the best.
  std::string why;
};

struct SearchResult {
  /// The best micro-batch, accumulation and depth of each strategy, mesh and
  /// checkpointing. Those that fit come first, the fastest at the front.
  std::vector<PlannedJob> plans;
  std::int64_t considered = 0; ///< plans whose memory was estimated

  /// The first one, if it fits.
  const PlannedJob* best() const {
    return plans.empty() || !plans.front().fits ? nullptr : &plans.front();
  }
};

/// Throws ConfigError if the global batch does not divide over the ranks, as
/// check() does, and as compute_times does.
SearchResult search(
    const SearchRequest& request, const MemoryModel& memory = estimate_memory);

} // namespace fsdp::plan
