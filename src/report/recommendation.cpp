// Which strategy fits first, over sizes of models and clusters.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "report/choices.h"
#include "report/plan_charts.h"
#include "report/quantity.h"
#include "report/strategy_style.h"

namespace fsdp::report {

namespace {

using plan::Cluster;
using plan::Job;
using plan::Strategy;

constexpr const char* kOffload = "full_shard with offload";
constexpr const char* kNothing = "nothing fits";

struct Size {
  double num_params;
  std::string name;
  plan::ModelShape shape;
};

std::vector<Size> sizes_with(const plan::ModelShape& model) {
  std::vector<Size> sizes;
  for (const double number : {1e9, 3e9, 7e9, 13e9, 30e9, 70e9, 175e9, 405e9}) {
    sizes.push_back(
        {number,
         count_text(number),
         model_of(plan::assumed_transformer(std::llround(number)))});
  }
  const auto own = static_cast<double>(model.num_params());
  sizes.push_back({own, model.name + " " + count_text(own), model});
  std::ranges::stable_sort(sizes, {}, &Size::num_params);
  return sizes;
}

bool fits(
    const plan::ModelShape& model, const Job& job, const Cluster& cluster) {
  try {
    const auto memory = estimate_memory(model, job, cluster);
    return static_cast<double>(memory.total()) <= cluster.device.memory_bytes;
  } catch (const ConfigError&) { // more bytes than 64 bits count
    return false;
  }
}

std::string first_that_fits(
    const plan::ModelShape& model, Job job, const Cluster& cluster) {
  const bool shared = job.transport == plan::Transport::kSharedMemory;
  job.shard_size = 0;
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kShardGradOp, Strategy::kFullShard}) {
    job.strategy = strategy;
    if ((!shared || strategy != Strategy::kNoShard) &&
        fits(model, job, cluster)) {
      return std::string(plan::name_of(strategy));
    }
  }
  job.cpu_offload = true;
  return !shared && fits(model, job, cluster) ? kOffload : kNothing;
}

} // namespace

std::vector<Cluster> smaller_clusters(const Cluster& cluster) {
  constexpr std::size_t kMost = 10;
  std::vector<Cluster> all;
  const auto add = [&](std::int64_t nodes, std::int64_t devices) {
    Cluster smaller = cluster;
    smaller.nodes = nodes;
    smaller.devices_per_node = devices;
    all.push_back(smaller);
  };
  for (std::int64_t n = 1; n < cluster.devices_per_node; n *= 2) {
    add(1, n);
  }
  for (std::int64_t n = 1; n < cluster.nodes; n *= 2) {
    add(n, cluster.devices_per_node);
  }
  add(cluster.nodes, cluster.devices_per_node);
  // Every second one while there are too many, but for the first and the last.
  while (all.size() > kMost) {
    std::vector<Cluster> fewer;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % 2 == 0 || i + 1 == all.size()) {
        fewer.push_back(all[i]);
      }
    }
    all = std::move(fewer);
  }
  return all;
}

Chart recommendation(
    const plan::ModelShape& model, const Job& job, const Cluster& cluster) {
  Chart chart;
  chart.id = "recommendation";
  chart.title = "First strategy that fits";
  chart.text =
      "In the order no_shard, shard_grad_op, full_shard, full_shard with "
      "offload, by the planner's memory at the worst moment, with this job's "
      "batch, sequence and types on " +
      cluster.device.name + ". Other models are usual ones of their size.";
  chart.kind = Kind::kPoints;
  chart.x.title = "devices";
  chart.y.title = "parameters";
  chart.series = {
      {.name = "no_shard", .color = color_of(Strategy::kNoShard)},
      {.name = "shard_grad_op", .color = color_of(Strategy::kShardGradOp)},
      {.name = "full_shard", .color = color_of(Strategy::kFullShard)},
      {.name = kOffload, .color = kOffloadColor},
      {.name = kNothing, .color = kNothingFitsColor}};
  chart.table.columns = {"parameters"};
  const std::vector<Cluster> clusters = smaller_clusters(cluster);
  std::vector<std::string> devices;
  for (const Cluster& smaller : clusters) {
    devices.push_back(std::to_string(smaller.world_size()));
  }
  const std::vector<Size> sizes = sizes_with(model);
  std::vector<std::string> names;
  for (const Size& size : sizes) {
    names.push_back(size.name);
  }
  add_choices(chart, devices, names, [&](std::size_t x, std::size_t y) {
    return first_that_fits(sizes[y].shape, job, clusters[x]);
  });
  return chart;
}

} // namespace fsdp::report
