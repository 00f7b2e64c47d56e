#include "report/plan_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "report/quantity.h"
#include "report/strategy_style.h"

namespace fsdp::report {

namespace {

using plan::Cluster;
using plan::Job;
using plan::MemoryEstimate;
using plan::Strategy;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double bytes(std::int64_t number) {
  return static_cast<double>(number);
}

std::string in_words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

/// Of the worst moment's components.
struct Group {
  const char* name;
  int color;
  std::vector<const char*> components;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all{
      {"states", 0, {"parameters", "gradients", "optimizer", "padding"}},
      {"gathered and reduced", 1, {"gathered", "reduction", "full_gradients"}},
      {"activations and logits", 2, {"activations", "working", "logits"}},
      {"overhead", 6, {"overhead"}}};
  return all;
}

double bytes_of(const Group& group, const MemoryEstimate& memory) {
  const bool at_loss = memory.total_at_loss() >= memory.total_in_backward();
  double sum = 0;
  for (const plan::MemoryPart& component : parts_of(memory)) {
    if (std::ranges::find(group.components, std::string_view(component.name)) !=
        group.components.end()) {
      sum += bytes(at_loss ? component.at_loss : component.in_backward);
    }
  }
  return sum;
}

/// A device's memory on a chart whose largest value is `most` bytes: beyond
/// some multiple of it the bars would be too small to see.
std::optional<Limit> device_limit(
    const Cluster& cluster, const Unit& unit, double most, bool on_x) {
  constexpr double kBeyond = 8;
  const double has = cluster.device.memory_bytes;
  if (has <= 0 || has > kBeyond * most) {
    return std::nullopt;
  }
  return Limit{
      .name = "memory of a " + cluster.device.name,
      .value = has / unit.scale,
      .on_x = on_x};
}

double most_memory(const std::vector<Way>& ways) {
  double most = 0;
  for (const Way& way : ways) {
    most = std::max(most, bytes(way.memory.total()));
  }
  return most;
}

double most_sent(const std::vector<Way>& ways) {
  double most = 0;
  for (const Way& way : ways) {
    most = std::max(most, bytes(way.traffic.sent_bytes()));
  }
  return most;
}

std::string fits_text(const Cluster& cluster, const MemoryEstimate& memory) {
  const double has = cluster.device.memory_bytes;
  return has <= 0 ? "?" : bytes(memory.total()) <= has ? "yes" : "no";
}

std::vector<Strategy> strategies_of(const Job& job, const Cluster& cluster) {
  if (job.transport == plan::Transport::kSharedMemory) {
    return {Strategy::kShardGradOp, Strategy::kFullShard};
  }
  std::vector<Strategy> all{
      Strategy::kNoShard, Strategy::kShardGradOp, Strategy::kFullShard};
  if (cluster.nodes > 1) {
    all.push_back(Strategy::kHybridShard);
  }
  return all;
}

} // namespace

std::string name_of(const Job& job, const Cluster& cluster) {
  std::string name(plan::name_of(job.strategy));
  const std::int64_t shard = shard_ranks(job, cluster);
  const std::int64_t replicas = cluster.world_size() / shard;
  return replicas > 1 && shard > 1 ? name + " " + std::to_string(replicas) +
                                         " x " + std::to_string(shard)
                                   : name;
}

Chart memory_by_component(const Way& way, const Cluster& cluster) {
  const MemoryEstimate& memory = way.memory;
  const Unit unit = unit_of_bytes(bytes(memory.total()));
  const std::string name = unit.name;
  Chart chart;
  chart.id = "components";
  chart.title = "Memory of a rank by component";
  chart.text =
      "Rank 0 at the loss, when all activations and the logits are "
      "there, and in the backward, when gradients are reduced: " +
      with_unit(bytes(memory.total_at_loss()), unit) + " and " +
      with_unit(bytes(memory.total_in_backward()), unit) + ".";
  chart.x.title = "memory, " + name;
  chart.series = {
      {.name = "at the loss", .color = 0},
      {.name = "in the backward", .color = 1}};
  chart.table.columns = {
      "component", "at the loss, " + name, "in the backward, " + name};
  const auto add =
      [&](const std::string& label, double at_loss, double in_backward) {
        chart.table.rows.push_back(
            {label,
             number_text(at_loss / unit.scale),
             number_text(in_backward / unit.scale)});
      };
  for (const plan::MemoryPart& component : parts_of(memory)) {
    const double at_loss = bytes(component.at_loss);
    const double in_backward = bytes(component.in_backward);
    if (at_loss > 0 || in_backward > 0) {
      chart.y.labels.push_back(in_words(component.name));
      chart.series[0].values.push_back(at_loss / unit.scale);
      chart.series[1].values.push_back(in_backward / unit.scale);
      add(chart.y.labels.back(), at_loss, in_backward);
    }
  }
  add("all", bytes(memory.total_at_loss()), bytes(memory.total_in_backward()));
  const double has = cluster.device.memory_bytes;
  if (has > 0) {
    add("the device has", has, has);
  }
  return chart;
}

Chart all_strategies(const std::vector<Way>& ways, const Cluster& cluster) {
  const double most = most_memory(ways);
  const Unit unit = unit_of_bytes(most);
  const Unit sent = unit_of_bytes(most_sent(ways));
  Chart chart;
  chart.id = "strategies";
  chart.title = "All strategies side by side";
  chart.text =
      "Memory of rank 0 at its worst moment, and what it sends in a step; the "
      "simulated step and its model FLOPs utilisation where the device's "
      "figures are known.";
  chart.kind = Kind::kStackedBars;
  chart.x.title = std::string("memory, ") + unit.name;
  for (const Group& group : groups()) {
    chart.series.push_back({.name = group.name, .color = group.color});
  }
  chart.table.columns = {
      "strategy",
      std::string("memory, ") + unit.name,
      "fits",
      std::string("sent, ") + sent.name,
      std::string("to other nodes, ") + sent.name,
      "step, ms",
      "MFU"};
  for (const Way& way : ways) {
    chart.y.labels.push_back(name_of(way.job, cluster));
    for (std::size_t i = 0; i < groups().size(); ++i) {
      chart.series[i].values.push_back(
          bytes_of(groups()[i], way.memory) / unit.scale);
    }
    chart.table.rows.push_back(
        {chart.y.labels.back(),
         number_text(bytes(way.memory.total()) / unit.scale),
         fits_text(cluster, way.memory),
         number_text(bytes(way.traffic.sent_bytes()) / sent.scale),
         number_text(bytes(way.traffic.sent_between_nodes()) / sent.scale),
         way.step ? number_text(1e3 * way.step->seconds) : "-",
         way.throughput ? percent_text(way.throughput->mfu) : "-"});
  }
  chart.limit = device_limit(cluster, unit, most, true);
  return chart;
}

Chart memory_savings(
    const plan::ModelShape& model, const Job& job, const Cluster& cluster) {
  Chart chart;
  chart.id = "savings";
  chart.title = "Memory by strategy and number of devices";
  chart.text =
      "Rank 0 at its worst moment, activations included, with the same batch "
      "a rank everywhere.";
  chart.x.title = "devices";
  const std::vector<Cluster> clusters = smaller_clusters(cluster);
  std::vector<double> all;
  for (const Strategy strategy : strategies_of(job, cluster)) {
    Series series;
    series.name = plan::name_of(strategy);
    series.color = color_of(strategy);
    for (const Cluster& smaller : clusters) {
      Job way = job;
      way.strategy = strategy;
      way.shard_size = 0;
      const bool hybrid = strategy == Strategy::kHybridShard;
      series.values.push_back(
          hybrid && smaller.nodes == 1
              ? kNone
              : bytes(estimate_memory(model, way, smaller).total()));
    }
    all.insert(all.end(), series.values.begin(), series.values.end());
    chart.series.push_back(std::move(series));
  }
  double most = 0;
  for (const double value : all) {
    most = std::isnan(value) ? most : std::max(most, value);
  }
  const Unit unit = unit_of_bytes(most);
  chart.y.logarithmic = spread_widely(all);
  chart.y.title = std::string("memory, ") + unit.name +
                  (chart.y.logarithmic ? ", logarithmic" : "");
  chart.limit = device_limit(cluster, unit, most, false);
  chart.table.columns = {"devices"};
  for (Series& series : chart.series) {
    chart.table.columns.push_back(series.name + ", " + unit.name);
    for (double& value : series.values) {
      value /= unit.scale;
    }
  }
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    chart.x.labels.push_back(std::to_string(clusters[i].world_size()));
    std::vector<std::string> cells{chart.x.labels.back()};
    for (const Series& series : chart.series) {
      cells.push_back(number_text(series.values[i]));
    }
    chart.table.rows.push_back(std::move(cells));
  }
  return chart;
}

Chart communication_volume(
    const std::vector<Way>& ways, const Cluster& cluster) {
  const Unit unit = unit_of_bytes(most_sent(ways));
  const std::string name = unit.name;
  Chart chart;
  chart.id = "volume";
  chart.title = "Communication volume of a step";
  chart.text =
      "What rank 0 sends, gathers and reductions together; of that, what goes "
      "over its own link to other nodes.";
  chart.kind = Kind::kStackedBars;
  chart.x.title = "sent in a step, " + name;
  chart.series = {
      {.name = "in its node", .color = 5},
      {.name = "to other nodes", .color = 4}};
  chart.table.columns = {
      "strategy", "in its node, " + name, "to other nodes, " + name};
  for (const Way& way : ways) {
    const double outside = bytes(way.traffic.sent_between_nodes());
    const double inside = bytes(way.traffic.sent_bytes()) - outside;
    chart.y.labels.push_back(name_of(way.job, cluster));
    chart.series[0].values.push_back(inside / unit.scale);
    chart.series[1].values.push_back(outside / unit.scale);
    chart.table.rows.push_back(
        {chart.y.labels.back(),
         number_text(inside / unit.scale),
         number_text(outside / unit.scale)});
  }
  return chart;
}

Chart communication_against_memory(
    const std::vector<Way>& ways, const Cluster& cluster) {
  const double most = most_memory(ways);
  const Unit unit = unit_of_bytes(most);
  const Unit sent = unit_of_bytes(most_sent(ways));
  Chart chart;
  chart.id = "tradeoff";
  chart.title = "Communication against memory";
  chart.text =
      "Each strategy buys memory with communication: best is low and left.";
  chart.kind = Kind::kPoints;
  chart.x.title = std::string("memory of rank 0, ") + unit.name;
  chart.y.title = std::string("sent in a step, ") + sent.name;
  chart.table.columns = {
      "strategy",
      std::string("memory, ") + unit.name,
      std::string("sent, ") + sent.name};
  for (const Way& way : ways) {
    const Point point{
        bytes(way.memory.total()) / unit.scale,
        bytes(way.traffic.sent_bytes()) / sent.scale};
    chart.series.push_back(
        {.name = name_of(way.job, cluster),
         .color = color_of(way.job.strategy),
         .points = {point}});
    chart.table.rows.push_back(
        {chart.series.back().name, number_text(point.x), number_text(point.y)});
  }
  chart.limit = device_limit(cluster, unit, most, true);
  return chart;
}

} // namespace fsdp::report
