#pragma once
// Reads a timeline: how much communication no compute hides, which units it
// belongs to, and what would change that.

#include <span>
#include <string>
#include <vector>

#include "plan/timeline.h"

namespace fsdp::plan {

struct Diagnosis {
  int rank = 0; ///< the one with the most exposed communication
  int num_ranks = 1;
  BusyTimes times; ///< of that rank
  double exposed = 0;
  double exposed_unshard = 0;
  double exposed_reduce = 0;
  std::vector<UnitExposure> units; ///< most exposed first
  /// Plain sentences, the most worthwhile first; never empty.
  std::vector<std::string> advice;
};

/// Throws UsageError if there are no events.
Diagnosis diagnose(std::span<const Event> events);

} // namespace fsdp::plan
