#include "cli/plan_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>

#include "cli/html_report.h"
#include "cli/option_value.h"
#include "cli/plan_options.h"
#include "cli/plan_report.h"
#include "cli/plan_search.h"
#include "cli/seed_tables_text.h"
#include "fsdp/error.h"
#include "plan/catalog.h"
#include "plan/device.h"

namespace fsdp::cli {

namespace {

std::string wrapped(const std::string& title, const std::string& words) {
  constexpr std::size_t kColumns = 78;
  std::string text = title + ":";
  std::size_t column = text.size();
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    const std::string word = words.substr(begin, end - begin);
    const bool fits = column + 1 + word.size() <= kColumns;
    text += (fits ? " " : "\n  ") + word;
    column = (fits ? column + 1 : 2) + word.size();
    begin = end + 1;
  }
  return text + "\n";
}

std::string footer() {
  std::string models;
  for (const std::string& name : plan::model_names()) {
    models += (models.empty() ? "" : " ") + name;
  }
  std::string devices;
  for (const plan::Device& device : plan::devices()) {
    devices += (devices.empty() ? "" : " ") + device.name;
  }
  return "\n" + wrapped("Models", models) + wrapped("Devices", devices) +
         R"(
  fsdp plan --model llama2-7b --device A100-SXM-80GB --nodes 2
  fsdp plan --model config.json --gpus-per-node 4 --checkpointing full --json
  fsdp plan --params 70B --nodes 64 --strategy hybrid_shard
  fsdp plan --model llama3-8b --nodes 8 --seq 8192 --search --global-batch 128
  fsdp plan --model llama3-8b --nodes 4 --html plan.html
)";
}

struct Flags {
  CLI::Option* html = nullptr;
  CLI::Option* loss = nullptr;
  CLI::Option* json = nullptr;
  CLI::Option* seed_tables = nullptr;
};

Flags add_flags(CLI::App& plan) {
  Flags flags;
  flags.html = add_option(
      plan,
      "--html",
      "FILE",
      "Write a page with charts; of the source documents' models if no model "
      "is given");
  flags.loss = add_option(
      plan,
      "--loss",
      "FILE",
      "Show the loss of this log of fsdp train --log-json there");
  flags.json =
      add_option(plan, "--json", "", "One JSON document, everything in bytes");
  flags.seed_tables = add_option(
      plan,
      "--seed-tables",
      "",
      "The tables of the project's source documents instead");
  return flags;
}

/// Writes the page that --html asks for; what to say of it.
std::string write_charts(const Flags& flags, report::Page page) {
  const auto path = value_of(*flags.html);
  if (!path) {
    return "";
  }
  add_loss(page, value_of(*flags.loss));
  write_page(*path, page);
  return is_on(*flags.json) ? "" : "\ncharts in " + *path + "\n";
}

void run(
    const Flags& flags,
    const PlanOptions& options,
    const SearchOptions& search) {
  const bool html = value_of(*flags.html).has_value();
  const bool json = is_on(*flags.json);
  if (!html && value_of(*flags.loss)) {
    throw ConfigError("--loss without --html: expected a page to show it on");
  }
  if (is_on(*flags.seed_tables) || (html && !options.any_given())) {
    if (options.any_given() || search.is_on()) {
      throw ConfigError(
          "--seed-tables are of fixed models: expected no flag but --json, "
          "--html and --loss");
    }
    const std::string said =
        html ? write_charts(flags, seed_page()) : std::string();
    std::cout << (json ? seed_tables_json() : seed_tables_text()) << said;
    return;
  }
  if (search.is_on()) {
    if (html) {
      throw ConfigError(
          "--search with --html: expected one of them; give the plan that the "
          "search finds to --html");
    }
    std::cout << search.run(options.read(), json);
    return;
  }
  const PlanReport report = make_report(options.read());
  const std::string said =
      html ? write_charts(flags, page_of_plan(report)) : std::string();
  std::cout << (json ? json_of(report) : text_of(report)) << said;
}

} // namespace

void register_plan(CLI::App& app) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Memory and traffic of a training step, before it is launched");
  plan->footer(footer());
  const PlanOptions options(*plan);
  const SearchOptions search(*plan);
  const Flags flags = add_flags(*plan);
  plan->callback([flags, options, search] { run(flags, options, search); });
}

} // namespace fsdp::cli
