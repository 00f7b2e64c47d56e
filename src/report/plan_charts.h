#pragma once
// What a planned job takes, beside what it could take.

#include <optional>
#include <vector>

#include "plan/memory.h"
#include "plan/model.h"
#include "plan/simulate.h"
#include "plan/traffic.h"
#include "report/chart.h"

namespace fsdp::report {

/// One way to shard the model.
struct Way {
  plan::Job job;
  plan::MemoryEstimate memory;
  plan::TrafficEstimate traffic;
  std::optional<plan::SimulatedStep> step;
  std::optional<plan::Throughput> throughput; ///< with `step`
};

/// "hybrid_shard 4 x 8": replicas and the ranks of each.
std::string name_of(const plan::Job& job, const plan::Cluster& cluster);

Chart memory_by_component(const Way& way, const plan::Cluster& cluster);

Chart all_strategies(
    const std::vector<Way>& ways, const plan::Cluster& cluster);

/// The worst moment on clusters of 1 device up to the given one.
Chart memory_savings(
    const plan::ModelShape& model,
    const plan::Job& job,
    const plan::Cluster& cluster);

Chart communication_volume(
    const std::vector<Way>& ways, const plan::Cluster& cluster);

Chart communication_against_memory(
    const std::vector<Way>& ways, const plan::Cluster& cluster);

/// Clusters that end in `cluster`: first a growing part of one node, then
/// growing numbers of nodes. At most 10.
std::vector<plan::Cluster> smaller_clusters(const plan::Cluster& cluster);

/// For models of the usual sizes and the planned one: the first strategy that
/// fits, in the documents' order, by the planner's memory.
Chart recommendation(
    const plan::ModelShape& model,
    const plan::Job& job,
    const plan::Cluster& cluster);

} // namespace fsdp::report
