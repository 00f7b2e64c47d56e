#pragma once
// Runs a schedule on one stream of compute and one of communication.
//
// Forward: the root is gathered, then the blocks in order; unit i's gather is
// issued once unit i - 1 - depth has computed, so that at most depth + 1 units
// are whole at once. Backward: the same in reverse from the head on, a unit's
// reduction issued when its backward is over. Collectives run in the order in
// which they were issued. A pass ends when its compute and its reductions have
// ended, which is where the runtime waits, too.

#include <cstdint>
#include <vector>

#include "plan/schedule.h"
#include "plan/timeline.h"

namespace fsdp::plan {

struct SimulatedStep {
  double seconds = 0;
  double compute = 0; ///< at full rate, optimizer included
  double optimizer = 0;
  double communication = 0;
  double exposed = 0;    ///< communication while nothing computes
  double contention = 0; ///< what running collectives add to the compute
  std::vector<UnitExposure> units; ///< of the whole step; empty without events
  /// The last kTracedPasses passes at most, and the optimizer; from 0 on.
  std::vector<Event> events;
  std::int64_t passes_left_out = 0; ///< of the events
};

inline constexpr std::int64_t kTracedPasses = 8;

/// `with_events`: fills units and events, too.
SimulatedStep simulate(const Schedule& schedule, bool with_events = true);

/// What people compare runs by.
struct Throughput {
  double tokens_per_second = 0; ///< of all ranks
  double mfu = 0; ///< model_flops over the peak of the compute type
  double hfu = 0; ///< with what checkpointing computes again
};

Throughput throughput_of(
    const SimulatedStep& step,
    const ComputeTimes& compute,
    const Job& job,
    const Cluster& cluster);

struct StepEstimate {
  SimulatedStep step;
  Throughput throughput;
};

/// All of it, from the job to its throughput. Throws ConfigError as
/// compute_times and make_schedule do.
StepEstimate estimate_step(
    const ModelShape& model,
    const Job& job,
    const Cluster& cluster,
    const Conditions& conditions = {},
    bool with_events = true);

} // namespace fsdp::plan
