#include "plan/timeline.h"

#include <algorithm>
#include <map>
#include <set>

namespace fsdp::plan {

namespace {

/// A moment at which an event of a rank begins or ends.
struct Edge {
  double at = 0;
  bool begins = false;
  std::size_t event = 0;
};

std::vector<Edge> edges_of(std::span<const Event> events, int rank) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].rank == rank) {
      edges.push_back({events[i].start, true, i});
      edges.push_back({events[i].end, false, i});
    }
  }
  std::ranges::stable_sort(
      edges, [](const Edge& a, const Edge& b) { return a.at < b.at; });
  return edges;
}

/// Calls `visit(seconds, computing, optimizing, communicating)` for every
/// stretch between two neighbouring edges; `communicating` holds the places of
/// the collectives that run.
template <typename Visit>
void sweep(std::span<const Event> events, int rank, Visit visit) {
  int computing = 0;
  int optimizing = 0;
  std::set<std::size_t> communicating;
  const std::vector<Edge> edges = edges_of(events, rank);
  double before = edges.empty() ? 0 : edges.front().at;
  for (const Edge& edge : edges) {
    if (edge.at > before) {
      visit(edge.at - before, computing > 0, optimizing > 0, communicating);
    }
    before = edge.at;
    const Category category = events[edge.event].category;
    if (is_communication(category)) {
      if (edge.begins) {
        communicating.insert(edge.event);
      } else {
        communicating.erase(edge.event);
      }
    } else {
      computing += edge.begins ? 1 : -1;
      if (category == Category::kOptimizer) {
        optimizing += edge.begins ? 1 : -1;
      }
    }
  }
}

} // namespace

std::string_view name_of(Category category) {
  switch (category) {
    case Category::kCompute:
      return "compute";
    case Category::kUnshard:
      return "unshard";
    case Category::kReduce:
      return "reduce";
    case Category::kOptimizer:
      return "optimizer";
  }
  return "";
}

std::vector<double> exposed_seconds(std::span<const Event> events, int rank) {
  std::vector<double> exposed(events.size());
  sweep(
      events,
      rank,
      [&](double seconds, bool computes, bool, const auto& communicating) {
        for (const std::size_t event : communicating) {
          exposed[event] +=
              computes ? 0
                       : seconds / static_cast<double>(communicating.size());
        }
      });
  return exposed;
}

BusyTimes busy_times(std::span<const Event> events, int rank) {
  BusyTimes times;
  const auto edges = edges_of(events, rank);
  if (edges.empty()) {
    return times;
  }
  times.start = edges.front().at;
  times.end = edges.back().at;
  sweep(
      events,
      rank,
      [&](double seconds,
          bool computes,
          bool optimizes,
          const auto& communicating) {
        times.compute += computes ? seconds : 0;
        times.optimizer += optimizes ? seconds : 0;
        times.communication += communicating.empty() ? 0 : seconds;
        times.idle += !computes && communicating.empty() ? seconds : 0;
      });
  return times;
}

std::vector<UnitExposure> exposure_by_unit(
    std::span<const Event> events, int rank) {
  const std::vector<double> exposed = exposed_seconds(events, rank);
  std::vector<UnitExposure> units;
  std::map<std::string, std::size_t, std::less<>> places;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    if (event.rank != rank || event.category == Category::kOptimizer) {
      continue;
    }
    const auto [place, is_new] = places.try_emplace(event.unit, units.size());
    if (is_new) {
      units.push_back({.unit = event.unit});
    }
    UnitExposure& unit = units[place->second];
    if (event.category == Category::kUnshard) {
      unit.unshard += exposed[i];
    } else if (event.category == Category::kReduce) {
      unit.reduce += exposed[i];
    }
  }
  return units;
}

} // namespace fsdp::plan
