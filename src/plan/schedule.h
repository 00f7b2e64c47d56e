#pragma once
// One step as FSDP2 and libfsdp schedule it: what every unit gathers, computes
// and reduces, in seconds. simulate.h runs it.

#include <cstdint>
#include <string>
#include <vector>

#include "plan/compute_time.h"
#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

struct Transfer {
  double seconds = 0;
  /// Part of the compute rate that it takes while it runs; below 1.
  double contention = 0;
};

struct ScheduledUnit {
  std::string name;
  UnitTime compute;
  Transfer unshard;   ///< the all-gather
  Transfer reduce;    ///< the reduce-scatter
  Transfer replicate; ///< the all-reduce between replicas, after it
};

struct Schedule {
  /// Gathered first, kept until its backward is over, reduced last. Its compute
  /// is that of `embedding` and `head`.
  ScheduledUnit root;
  UnitTime embedding;
  UnitTime head;
  std::vector<ScheduledUnit> blocks; ///< in the forward's order
  double optimizer = 0;
  bool reshard_after_forward = true;
  /// A unit is gathered once at most this many units before it are in use.
  std::int64_t prefetch_depth = 1;
  std::int64_t passes = 1; ///< of accumulation
  bool sync_every_pass = true;
};

/// What is asked beside the job.
struct Conditions {
  double link_factor = 1; ///< bandwidth of every link, of what it should be
  double straggler_factor = 1; ///< compute seconds of the slowest rank
  /// Neighbouring blocks are merged into units of at least so many bytes of
  /// gathered parameters; 0: every block is a unit.
  std::int64_t bucket_bytes = 0;
};

/// Throws ConfigError for factors that are not positive and finite, a straggler
/// below 1, a negative bucket, and as compute_times and collective_time do.
/// Every rank waits for the slowest in each collective, so one straggler sets
/// everybody's pace: the schedule is the straggler's.
Schedule make_schedule(
    const ModelShape& model,
    const Job& job,
    const Cluster& cluster,
    const ComputeTimes& compute,
    const Conditions& conditions = {});

} // namespace fsdp::plan
