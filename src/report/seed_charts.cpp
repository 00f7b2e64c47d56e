#include "report/seed_charts.h"

#include <algorithm>
#include <array>
#include <string>

#include "plan/seed_tables.h"
#include "report/choices.h"
#include "report/quantity.h"
#include "report/strategy_style.h"

namespace fsdp::report {

namespace {

using plan::SeedMemory;
using plan::SeedTables;
using plan::Strategy;

constexpr double kMega = 1e6;
constexpr std::array kStrategies{
    Strategy::kNoShard, Strategy::kShardGradOp, Strategy::kFullShard};

Series series_of(Strategy strategy) {
  Series series;
  series.name = name_of(strategy);
  series.color = color_of(strategy);
  return series;
}

Chart memory_savings(const SeedTables& tables) {
  Chart chart;
  chart.id = "savings";
  chart.title = "Memory by strategy and number of GPUs";
  chart.text =
      "Parameters, gradients and Adam's state of the documents' model in fp32, "
      "16 bytes a parameter before they are shared out. Activations come on "
      "top.";
  chart.x.title = "GPUs";
  chart.y.title = "model state of a GPU, MB";
  chart.table.columns = {"strategy", "GPUs", "state, MB", "saved"};
  const double whole = tables.memory.front().total();
  for (const Strategy strategy : kStrategies) {
    Series series = series_of(strategy);
    chart.x.labels.clear();
    for (const SeedMemory& row : tables.memory) {
      if (row.strategy != strategy) {
        continue;
      }
      series.values.push_back(row.total() / kMega);
      chart.x.labels.push_back(std::to_string(row.gpus));
      chart.table.rows.push_back(
          {series.name,
           chart.x.labels.back(),
           number_text(series.values.back()),
           percent_text(1 - row.total() / whole)});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart memory_by_component(const SeedTables& tables) {
  constexpr std::int64_t kGpus = 8;
  Chart chart;
  chart.id = "strategies";
  chart.title = "All strategies side by side, on 8 GPUs";
  chart.text = "The same memory by component.";
  chart.kind = Kind::kStackedBars;
  chart.x.title = "model state of a GPU, MB";
  chart.series = {
      {.name = "parameters", .color = 0},
      {.name = "gradients", .color = 1},
      {.name = "optimizer", .color = 2}};
  chart.table.columns = {
      "strategy", "parameters, MB", "gradients, MB", "optimizer, MB"};
  for (const SeedMemory& row : tables.memory) {
    if (row.gpus != kGpus) {
      continue;
    }
    chart.y.labels.emplace_back(name_of(row.strategy));
    std::vector<std::string> cells{chart.y.labels.back()};
    const std::array parts{row.parameters, row.gradients, row.optimizer};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      chart.series[i].values.push_back(parts[i] / kMega);
      cells.push_back(number_text(parts[i] / kMega));
    }
    chart.table.rows.push_back(std::move(cells));
  }
  return chart;
}

Chart communication_volume(const SeedTables& tables) {
  Chart chart;
  chart.id = "volume";
  chart.title = "Communication volume of a step";
  chart.text =
      "The documents count two copies of the parameters for each collective. "
      "A rank of a ring of 8 sends (8-1)/8 of a copy for a gather or a "
      "reduce-scatter and twice that for an all-reduce; shard_grad_op also "
      "gathers what was updated in parts, which the documents leave out.";
  chart.y.title = "volume of a step, MB";
  chart.x.title = "strategy";
  chart.series = {
      {.name = "as the documents count", .color = 6},
      {.name = "sent by a rank of a ring of 8", .color = 0}};
  chart.table.columns = {"strategy", "counted, MB", "ring of 8, MB"};
  for (const plan::SeedTraffic& row : tables.traffic) {
    chart.x.labels.emplace_back(name_of(row.strategy));
    chart.series[0].values.push_back(row.counted / kMega);
    chart.series[1].values.push_back(row.ring / kMega);
    chart.table.rows.push_back(
        {chart.x.labels.back(),
         number_text(row.counted / kMega),
         number_text(row.ring / kMega)});
  }
  return chart;
}

Chart communication_against_memory(const SeedTables& tables) {
  constexpr std::int64_t kGpus = 8;
  Chart chart;
  chart.id = "tradeoff";
  chart.title = "Communication against memory, on 8 GPUs";
  chart.text =
      "Each strategy buys memory with communication, as the documents count "
      "both: best is low and left.";
  chart.kind = Kind::kPoints;
  chart.x.title = "model state of a GPU, MB";
  chart.y.title = "volume of a step, MB";
  chart.table.columns = {"strategy", "state, MB", "volume, MB"};
  const auto num_params = static_cast<double>(tables.model.num_params);
  for (const Strategy strategy : kStrategies) {
    const Point point{
        plan::seed_memory(num_params, strategy, kGpus).total() / kMega,
        plan::seed_traffic(num_params, strategy).counted / kMega};
    Series series = series_of(strategy);
    series.points.push_back(point);
    chart.table.rows.push_back(
        {series.name, number_text(point.x), number_text(point.y)});
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart recommendation() {
  constexpr double kMemoryGb = 80;
  constexpr std::array kSizes{1e9, 3e9, 7e9, 13e9, 30e9, 70e9, 175e9, 405e9};
  constexpr std::array<std::int64_t, 8> kGpus{1, 4, 8, 16, 32, 64, 128, 256};
  Chart chart;
  chart.id = "recommendation";
  chart.title = "Recommended strategy, GPUs of 80 GB";
  chart.text =
      "The documents' rule: the first of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD "
      "whose model state alone fits, else offload.";
  chart.kind = Kind::kPoints;
  chart.x.title = "GPUs";
  chart.y.title = "parameters";
  chart.series = {
      {.name = "NO_SHARD", .color = color_of(Strategy::kNoShard)},
      {.name = "SHARD_GRAD_OP", .color = color_of(Strategy::kShardGradOp)},
      {.name = "FULL_SHARD", .color = color_of(Strategy::kFullShard)},
      {.name = "FULL_SHARD + CPU offload", .color = kOffloadColor}};
  chart.table.columns = {"parameters"};
  std::vector<std::string> gpus;
  for (const std::int64_t number : kGpus) {
    gpus.push_back(std::to_string(number));
  }
  std::vector<std::string> sizes;
  for (const double size : kSizes) {
    sizes.push_back(count_text(size));
  }
  add_choices(chart, gpus, sizes, [&](std::size_t x, std::size_t y) {
    return plan::seed_advice(kSizes[y], kGpus[x], kMemoryGb).recommendation;
  });
  return chart;
}

} // namespace

std::vector<Chart> seed_charts() {
  const SeedTables tables = plan::seed_tables();
  return {
      memory_savings(tables),
      memory_by_component(tables),
      communication_volume(tables),
      communication_against_memory(tables),
      recommendation()};
}

} // namespace fsdp::report
