#include "cli/simulate_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/exposure_text.h"
#include "cli/html_report.h"
#include "cli/option_value.h"
#include "cli/plan_options.h"
#include "cli/plan_report.h"
#include "cli/table.h"
#include "cli/units.h"
#include "fsdp/error.h"
#include "plan/chrome_trace.h"
#include "plan/memory.h"
#include "plan/schedule.h"
#include "plan/simulate.h"
#include "report/quantity.h"

namespace fsdp::cli {

namespace {

using nlohmann::ordered_json;

constexpr const char* kJsonHelp = "Print one JSON document";
constexpr double kMega = 1e6;

constexpr const char* kFooter = R"(
MFU counts 6 FLOPs a parameter and token and 12 x width x keys an attention, over
the device's peak; HFU adds what checkpointing computes again. Every rank waits
for the slowest, so a straggler's step is everybody's.

  fsdp simulate --model llama3-8b --nodes 8 --gpus-per-node 8 --seq 8192
  fsdp simulate --model llama3-8b --nodes 8 --slow-link 0.5 --trace step.json
)";

struct Flags {
  CLI::Option* bucket = nullptr;
  CLI::Option* slow_link = nullptr;
  CLI::Option* straggler = nullptr;
  CLI::Option* trace = nullptr;
  CLI::Option* html = nullptr;
  CLI::Option* json = nullptr;
};

struct Result {
  PlanRequest request;
  plan::MemoryEstimate memory;
  plan::SimulatedStep step;
  plan::Throughput throughput;
};

Flags add_flags(CLI::App& simulate) {
  const auto add = [&](const char* name, const char* value, const char* help) {
    return add_option(simulate, name, value, help);
  };
  Flags flags;
  flags.bucket =
      add("--bucket-mb",
          "X",
          "Merge neighbouring blocks into units of at least so many MB "
          "(default: every block is a unit)");
  flags.slow_link =
      add("--slow-link",
          "F",
          "Links have this share of their bandwidth (default: 1)");
  flags.straggler =
      add("--straggler",
          "F",
          "One rank computes this many times as long (default: 1)");
  flags.trace = add("--trace", "FILE", "Write the timeline as a Chrome trace");
  flags.html = add("--html", "FILE", "Write a page with charts");
  flags.json = add("--json", "", kJsonHelp);
  return flags;
}

std::optional<double> number_of(
    const CLI::Option& option, double least, double most) {
  const auto text = value_of(option);
  if (!text) {
    return std::nullopt;
  }
  const auto number = parse_real(*text);
  if (!number || *number < least || *number > most) {
    char range[64];
    std::snprintf(range, sizeof(range), "%g to %g", least, most);
    throw ConfigError(
        name_of(option) + " is \"" + *text + "\": expected a number from " +
        range);
  }
  return number;
}

plan::Conditions read_conditions(const Flags& flags) {
  plan::Conditions conditions;
  conditions.link_factor = number_of(*flags.slow_link, 1e-6, 1).value_or(1);
  conditions.straggler_factor = number_of(*flags.straggler, 1, 1e6).value_or(1);
  conditions.bucket_bytes =
      std::llround(number_of(*flags.bucket, 0, 1e9).value_or(0) * kMega);
  return conditions;
}

Result simulate(PlanRequest request, const plan::Conditions& conditions) {
  plan::StepEstimate estimate = plan::estimate_step(
      request.model, request.job, request.cluster, conditions);
  Result result;
  result.memory =
      plan::estimate_memory(request.model, request.job, request.cluster);
  result.step = std::move(estimate.step);
  result.throughput = estimate.throughput;
  result.request = std::move(request);
  return result;
}

std::string times_text(const plan::SimulatedStep& step) {
  Table table(
      {"of " + seconds_text(step.seconds) + " a step", "time", "share"});
  const auto add = [&](const char* label, double seconds) {
    const double share = step.seconds > 0 ? seconds / step.seconds : 0;
    table.add({label, seconds_text(seconds), report::percent_text(share)});
  };
  add("compute", step.compute - step.optimizer);
  add("compute that collectives add", step.contention);
  add("optimizer", step.optimizer);
  add("communication", step.communication);
  add("exposed communication", step.exposed);
  return table.text();
}

std::string rates_text(const Result& result) {
  const auto ranks = static_cast<double>(result.request.cluster.world_size());
  const double tokens = result.throughput.tokens_per_second;
  Table table({"throughput", ""});
  table.add({"tokens a second", count_text(tokens)});
  table.add({"of a rank", count_text(tokens / ranks)});
  table.add({"MFU", report::percent_text(result.throughput.mfu)});
  table.add({"HFU", report::percent_text(result.throughput.hfu)});
  return table.text();
}

void print(const Result& result) {
  const plan::Cluster& cluster = result.request.cluster;
  std::vector<plan::UnitExposure> units = result.step.units;
  std::ranges::stable_sort(
      units, std::ranges::greater(), &plan::UnitExposure::seconds);
  std::cout << result.request.model.name << ", "
            << name_of(result.request.job.strategy) << " on "
            << cluster.world_size() << " x " << cluster.device.name << '\n'
            << "memory: " << verdict_of(result.request, result.memory) << '\n'
            << times_text(result.step) << '\n'
            << rates_text(result) << exposed_units_text(units);
}

ordered_json to_json(const Result& result) {
  const plan::SimulatedStep& step = result.step;
  return {
      {"model", result.request.model.name},
      {"device", result.request.cluster.device.name},
      {"ranks", result.request.cluster.world_size()},
      {"strategy", name_of(result.request.job.strategy)},
      {"memory_bytes", result.memory.total()},
      {"step_s", step.seconds},
      {"compute_s", step.compute - step.optimizer},
      {"optimizer_s", step.optimizer},
      {"communication_s", step.communication},
      {"exposed_s", step.exposed},
      {"contention_s", step.contention},
      {"tokens_per_second", result.throughput.tokens_per_second},
      {"mfu", result.throughput.mfu},
      {"hfu", result.throughput.hfu},
      {"units", exposed_units_json(step.units)}};
}

void write_trace_file(
    const std::string& path, const plan::SimulatedStep& step) {
  std::ofstream file(path);
  plan::write_trace(file, step.events);
  file.close();
  if (!file) {
    throw DataError("--trace '" + path + "': cannot be written");
  }
}

void run(const Flags& flags, const PlanOptions& options) {
  const plan::Conditions conditions = read_conditions(flags);
  const auto trace = value_of(*flags.trace);
  const auto html = value_of(*flags.html);
  const bool as_json = value_of(*flags.json).has_value();
  const Result result = simulate(options.read(), conditions);
  if (trace) {
    write_trace_file(*trace, result.step);
  }
  if (html) {
    write_page(
        *html, page_of_step(result.request, result.step, result.throughput));
  }
  if (as_json) {
    std::cout << to_json(result).dump(2) << '\n';
    return;
  }
  print(result);
  if (trace) {
    std::cout << "timeline in " << *trace;
    if (result.step.passes_left_out > 0) {
      std::cout << ", without the first " << result.step.passes_left_out
                << " passes";
    }
    std::cout << '\n';
  }
  if (html) {
    std::cout << "charts in " << *html << '\n';
  }
}

} // namespace

void register_simulate(CLI::App& app) {
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Simulate one step: what takes how long, what is exposed");
  simulate->footer(kFooter);
  const PlanOptions options(*simulate);
  const Flags flags = add_flags(*simulate);
  simulate->callback([flags, options] { run(flags, options); });
}

} // namespace fsdp::cli
