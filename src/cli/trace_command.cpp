#include "cli/trace_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/exposure_text.h"
#include "cli/html_report.h"
#include "cli/option_value.h"
#include "cli/table.h"
#include "cli/units.h"
#include "fsdp/error.h"
#include "plan/chrome_trace.h"
#include "plan/diagnose.h"
#include "report/quantity.h"

namespace fsdp::cli {

namespace {

using nlohmann::ordered_json;

constexpr const char* kJsonHelp = "Print one JSON document";

constexpr const char* kFooter = R"(
FILE is a Chrome trace as `fsdp train --profile FILE` records it and
`fsdp simulate --trace FILE` writes it; ui.perfetto.dev shows it.
)";

std::string times_text(const plan::Diagnosis& diagnosis) {
  const plan::BusyTimes& busy = diagnosis.times;
  Table table({"of " + seconds_text(busy.seconds()), "time", "share"});
  const auto add = [&](const char* label, double seconds) {
    const double whole = busy.seconds();
    table.add(
        {label,
         seconds_text(seconds),
         report::percent_text(whole > 0 ? seconds / whole : 0)});
  };
  add("compute", busy.compute - busy.optimizer);
  add("optimizer", busy.optimizer);
  add("communication", busy.communication);
  add("hidden by compute", busy.communication - diagnosis.exposed);
  add("exposed, gathers", diagnosis.exposed_unshard);
  add("exposed, reductions", diagnosis.exposed_reduce);
  add("nothing runs", busy.idle);
  return table.text();
}

void print(const plan::Diagnosis& diagnosis) {
  std::cout << "rank " << diagnosis.rank;
  if (diagnosis.num_ranks > 1) {
    std::cout << ", which waits most of " << diagnosis.num_ranks;
  }
  std::cout << '\n' << times_text(diagnosis);
  std::cout << exposed_units_text(diagnosis.units);
  std::cout << "\nwhat to change\n";
  for (const std::string& line : diagnosis.advice) {
    std::cout << "  " << line << '\n';
  }
}

ordered_json to_json(const plan::Diagnosis& diagnosis) {
  const plan::BusyTimes& busy = diagnosis.times;
  return {
      {"rank", diagnosis.rank},
      {"ranks", diagnosis.num_ranks},
      {"seconds", busy.seconds()},
      {"compute_s", busy.compute - busy.optimizer},
      {"optimizer_s", busy.optimizer},
      {"communication_s", busy.communication},
      {"exposed_s", diagnosis.exposed},
      {"exposed_unshard_s", diagnosis.exposed_unshard},
      {"exposed_reduce_s", diagnosis.exposed_reduce},
      {"idle_s", busy.idle},
      {"units", exposed_units_json(diagnosis.units)},
      {"advice", diagnosis.advice}};
}

struct Flags {
  CLI::Option* file = nullptr;
  CLI::Option* html = nullptr;
  CLI::Option* json = nullptr;
};

void run(const Flags& flags) {
  if (flags.file->count() == 0) {
    throw ConfigError("no file: expected fsdp trace FILE");
  }
  const auto html = value_of(*flags.html);
  const bool as_json = value_of(*flags.json).has_value();
  const std::string& path = flags.file->results().front();
  const std::vector<plan::Event> events = plan::read_trace(path);
  const plan::Diagnosis diagnosis = plan::diagnose(events);
  if (html) {
    write_page(*html, page_of_trace(path, events, diagnosis));
  }
  if (as_json) {
    std::cout << to_json(diagnosis).dump(2) << '\n';
    return;
  }
  print(diagnosis);
  if (html) {
    std::cout << "\ncharts in " << *html << '\n';
  }
}

} // namespace

void register_trace(CLI::App& app) {
  CLI::App* trace = app.add_subcommand(
      "trace", "Say how much communication of a timeline is exposed, and why");
  trace->footer(kFooter);
  Flags flags;
  flags.file = trace->add_option("file", CLI::callback_t{}, "The timeline")
                   ->type_name("FILE");
  flags.html = add_option(*trace, "--html", "FILE", "Write a page with charts");
  flags.json = add_option(*trace, "--json", "", kJsonHelp);
  trace->callback([flags] { run(flags); });
}

} // namespace fsdp::cli
