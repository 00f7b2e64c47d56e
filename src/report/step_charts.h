#pragma once
// What a step does when, simulated or recorded.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/timeline.h"
#include "report/chart.h"

namespace fsdp::report {

inline constexpr std::size_t kMostSpans = 4000;

/// The streams of `rank`, the last kMostSpans events at most, from 0 on.
/// Throws UsageError if it has none.
Chart timeline(std::span<const plan::Event> events, int rank);

/// In the order given; the table names those that wait alone.
Chart exposed_by_unit(std::span<const plan::UnitExposure> units);

/// Seconds by name, beside the whole that they are shares of.
Chart times_of_step(
    const std::vector<std::pair<std::string, double>>& parts, double whole);

} // namespace fsdp::report
