#pragma once
// What a rank does when, simulated or recorded.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::plan {

enum class Category : std::uint8_t { kCompute, kUnshard, kReduce, kOptimizer };

std::string_view name_of(Category category); ///< "compute", "unshard", ...

constexpr bool is_communication(Category category) {
  return category == Category::kUnshard || category == Category::kReduce;
}

struct Event {
  Category category = Category::kCompute;
  std::string name; ///< "forward", "all_gather", ...
  std::string unit; ///< "root", "blocks.3", ...
  double start = 0; ///< seconds
  double end = 0;
  int rank = 0;

  double seconds() const { return end - start; }
};

/// For each event of `rank`, the seconds of it during which the rank computes
/// nothing (an optimizer's step is compute); 0 for what is no communication,
/// and for other ranks. Collectives that run at once share such a time equally.
std::vector<double> exposed_seconds(std::span<const Event> events, int rank);

struct BusyTimes {
  double start = 0;   ///< of the first event
  double end = 0;     ///< of the last
  double compute = 0; ///< at least one computes, optimizer included
  double optimizer = 0;
  double communication = 0; ///< at least one collective runs
  double idle = 0;          ///< nothing runs

  double seconds() const { return end - start; }
};

/// Over the events of `rank`, each moment counted once.
BusyTimes busy_times(std::span<const Event> events, int rank);

struct UnitExposure {
  std::string unit;
  double unshard = 0; ///< exposed seconds of its gathers
  double reduce = 0;  ///< of its reductions

  double seconds() const { return unshard + reduce; }
};

/// Exposed seconds by unit, in order of the units' first events; `rank` alone.
std::vector<UnitExposure> exposure_by_unit(
    std::span<const Event> events, int rank);

} // namespace fsdp::plan
