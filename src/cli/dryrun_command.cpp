#include "cli/dryrun_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/option_value.h"
#include "cli/setting_flags.h"
#include "cli/table.h"
#include "cli/units.h"
#include "core/parse_int.h"
#include "dryrun/dry_run.h"
#include "fsdp/error.h"
#include "train/run_on_ranks.h"

namespace fsdp::cli {

namespace {

constexpr const char* kFooter = R"(
The step of `fsdp train` with the same flags, by the same runtime, on tensors
without memory and over a communicator that counts. -n may be thousands.

  fsdp dryrun -n 4096 --preset mid --dtype bf16
)";

/// The settings that change what a step asks for.
bool matters(std::string_view name) {
  constexpr std::array kNames{
      "preset",
      "batch",
      "micro-batch",
      "seq",
      "dtype",
      "optimizer",
      "clip",
      "no-sync-accumulation",
      "reshard-after-forward",
      "prefetch"};
  return std::ranges::find(kNames, name) != kNames.end();
}

int whole_of(const CLI::Option& option, int least, int otherwise) {
  const auto text = value_of(option);
  if (!text) {
    return otherwise;
  }
  const auto number = parse_int(*text);
  if (!number || *number < least) {
    throw ConfigError(
        name_of(option) + " is \"" + *text + "\": expected a whole number of " +
        std::to_string(least) + " or more");
  }
  return *number;
}

struct Flags {
  SettingFlags settings;
  CLI::Option* ranks;
  CLI::Option* rank;
  CLI::Option* json;
};

DryRunOptions read(const Flags& flags) {
  DryRunOptions options;
  options.train = make_train_options(flags.settings.read());
  options.world_size = whole_of(*flags.ranks, 1, 0);
  if (options.world_size == 0) {
    throw ConfigError("-n is missing: give the number of ranks");
  }
  constexpr int kMostRanks = 100'000; // a rank knows every other's rows
  if (options.world_size > kMostRanks) {
    throw ConfigError(
        "-n is " + std::to_string(options.world_size) + ": expected at most " +
        std::to_string(kMostRanks) + " ranks");
  }
  options.rank = whole_of(*flags.rank, 0, 0);
  if (options.rank >= options.world_size) {
    throw ConfigError(
        "--rank is " + std::to_string(options.rank) + ": expected 0 to " +
        std::to_string(options.world_size - 1) + ", the last of -n " +
        std::to_string(options.world_size));
  }
  if (!options.train.given.contains("batch")) {
    // The preset's is for a few ranks.
    const std::int64_t share =
        (options.train.batch + options.world_size - 1) / options.world_size;
    options.train.batch = share * options.world_size;
  }
  return options;
}

void print_text(const DryRunOptions& options, const DryRunReport& report) {
  std::cout << "rank " << options.rank << " of " << options.world_size
            << ", preset " << options.train.preset << ", "
            << report.num_parameters << " parameters, batch "
            << options.train.batch << " x " << options.train.seq
            << " tokens over all ranks\n\nMemory of the rank\n";
  Table memory({"component", "at rest", "after forward", "peak of a step"});
  const auto add = [&](std::string_view name,
                       const MemoryUse& rest,
                       const MemoryUse& forward,
                       const MemoryUse& step) {
    memory.add(
        {std::string(name),
         bytes_text(static_cast<double>(rest.current)),
         bytes_text(static_cast<double>(forward.current)),
         bytes_text(static_cast<double>(step.peak))});
  };
  for (std::size_t i = 0; i < kNumMemoryComponents; ++i) {
    const auto component = static_cast<MemoryComponent>(i);
    add(name_of(component),
        report.at_rest[component],
        report.after_forward[component],
        report.after_step[component]);
  }
  add("all",
      report.at_rest.total,
      report.after_forward.total,
      report.after_step.total);
  std::cout << memory.text() << "\nA step asks for\n";
  Table calls({"what", "number"});
  calls.add({"all-gathers", std::to_string(report.step.num_all_gathers)});
  calls.add(
      {"reduce-scatters", std::to_string(report.step.num_reduce_scatters)});
  calls.add({"meetings", std::to_string(report.step.num_meetings)});
  calls.add({"bytes sent", std::to_string(report.step.bytes_sent)});
  std::cout << calls.text();
}

void print_json(const DryRunOptions& options, const DryRunReport& report) {
  const auto uses = [](const MemoryReport& memory) {
    nlohmann::ordered_json json;
    const auto put = [&](std::string_view name, const MemoryUse& use) {
      json[std::string(name)] = {
          {"current", use.current},
          {"peak", use.peak},
          {"at_total_peak", use.at_total_peak}};
    };
    for (std::size_t i = 0; i < kNumMemoryComponents; ++i) {
      const auto component = static_cast<MemoryComponent>(i);
      put(name_of(component), memory[component]);
    }
    put("all", memory.total);
    return json;
  };
  nlohmann::ordered_json json{
      {"preset", options.train.preset},
      {"world_size", options.world_size},
      {"rank", options.rank},
      {"batch", options.train.batch},
      {"seq", options.train.seq},
      {"parameters", report.num_parameters},
      {"at_rest_bytes", uses(report.at_rest)},
      {"after_forward_bytes", uses(report.after_forward)},
      {"step_bytes", uses(report.after_step)},
      {"all_gathers", report.step.num_all_gathers},
      {"reduce_scatters", report.step.num_reduce_scatters},
      {"meetings", report.step.num_meetings},
      {"sent_bytes", report.step.bytes_sent}};
  std::cout << json.dump(2) << "\n";
}

} // namespace

void register_dryrun(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "dryrun", "Count what a training step takes, for one rank of any number");
  command->footer("\nPresets:\n" + preset_lines() + kFooter);
  const Flags flags{
      .settings = SettingFlags(*command, matters),
      .ranks = add_option(*command, "-n,--ranks", "N", "Ranks of the run"),
      .rank = add_option(
          *command, "--rank", "R", "The rank to count for (default: 0)"),
      .json =
          add_option(*command, "--json", "", "One JSON document, in bytes")};
  command->callback([flags] {
    const DryRunOptions options = read(flags);
    with_one_line_errors([&] {
      const DryRunReport report = dry_run(options);
      flags.json->count() > 0 ? print_json(options, report)
                              : print_text(options, report);
    });
  });
}

} // namespace fsdp::cli
