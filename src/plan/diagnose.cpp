#include "plan/diagnose.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "fsdp/error.h"

namespace fsdp::plan {

namespace {

/// Below these shares of the time nothing is worth a change.
constexpr double kLittle = 0.05;
constexpr double kMuch = 0.5;

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f %%", 100 * share);
  return text;
}

std::string times(double factor) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", factor);
  return text;
}

/// Exposed seconds that more prefetching cannot hide: nothing has computed
/// before a timeline's first gather, nothing comes after its last reduction.
bool is_link_bound(const BusyTimes& busy) {
  return busy.communication > busy.compute - busy.optimizer;
}

void advise_on_gathers(Diagnosis& diagnosis) {
  const BusyTimes& busy = diagnosis.times;
  if (is_link_bound(busy)) {
    const double passes = busy.compute - busy.optimizer;
    diagnosis.advice.push_back(
        "collectives take " +
        (passes > 0 ? times(busy.communication / passes) + " times as long as"
                    : std::string("all the time, without")) +
        " the compute that could hide them: raise the batch of a rank, or "
        "accumulate without synchronising");
    diagnosis.advice.emplace_back(
        "on several nodes, shard inside a node and keep replicas between them "
        "(HSDP): gathers then use the faster link");
    return;
  }
  diagnosis.advice.emplace_back(
      "there is compute enough to hide the gathers: raise the prefetch depth "
      "by one and look again; every step holds one more unit in memory");
}

void advise(Diagnosis& diagnosis) {
  const BusyTimes& busy = diagnosis.times;
  const double whole = busy.seconds();
  if (busy.communication <= 0) {
    diagnosis.advice.emplace_back("there is no communication to hide");
  } else if (diagnosis.exposed <= kLittle * whole) {
    diagnosis.advice.push_back(
        "nothing to gain from the schedule: compute hides " +
        percent(1 - diagnosis.exposed / busy.communication) +
        " of the communication");
  } else if (diagnosis.exposed_unshard >= diagnosis.exposed_reduce) {
    advise_on_gathers(diagnosis);
  } else {
    diagnosis.advice.emplace_back(
        is_link_bound(busy)
            ? "reductions wait for the link: reduce in bfloat16, raise the "
              "batch of a rank, or accumulate without synchronising"
            : "reductions of the last units have nothing left to hide behind: "
              "make the first blocks and the root smaller units, or reduce in "
              "bfloat16");
  }
  if (busy.idle > kLittle * whole) {
    diagnosis.advice.push_back(
        "nothing runs for " + percent(busy.idle / whole) +
        " of the time: look at the data loader, and at the host's work between "
        "the units");
  }
  if (busy.optimizer > kLittle * whole && busy.optimizer < kMuch * whole) {
    diagnosis.advice.push_back(
        "the optimizer takes " + percent(busy.optimizer / whole) +
        " of the time: accumulate over more passes, or shard over more ranks");
  }
}

} // namespace

Diagnosis diagnose(std::span<const Event> events) {
  if (events.empty()) {
    throw UsageError("diagnose: the timeline has no events; pass at least one");
  }
  std::set<int> ranks;
  for (const Event& event : events) {
    ranks.insert(event.rank);
  }
  Diagnosis worst;
  bool is_first = true;
  for (const int rank : ranks) {
    Diagnosis own;
    own.rank = rank;
    own.num_ranks = static_cast<int>(ranks.size());
    own.units = exposure_by_unit(events, rank);
    for (const UnitExposure& unit : own.units) {
      own.exposed_unshard += unit.unshard;
      own.exposed_reduce += unit.reduce;
    }
    own.exposed = own.exposed_unshard + own.exposed_reduce;
    if (is_first || own.exposed > worst.exposed) {
      worst = std::move(own);
      is_first = false;
    }
  }
  worst.times = busy_times(events, worst.rank);
  std::ranges::stable_sort(
      worst.units, std::ranges::greater(), &UnitExposure::seconds);
  advise(worst);
  return worst;
}

} // namespace fsdp::plan
