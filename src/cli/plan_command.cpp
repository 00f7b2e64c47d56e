#include "cli/plan_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>

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
)";
}

bool is_on(const CLI::Option& option) {
  const auto value = value_of(option);
  if (value && *value != "true" && *value != "false") {
    throw ConfigError(
        name_of(option) + " '" + *value + "': expected true or false");
  }
  return value == "true";
}

} // namespace

void register_plan(CLI::App& app) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Memory and traffic of a training step, before it is launched");
  plan->footer(footer());
  const PlanOptions options(*plan);
  const SearchOptions search(*plan);
  const auto add_switch = [&](const char* name, const std::string& help) {
    return plan->add_flag(name, help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  const CLI::Option* json =
      add_switch("--json", "One JSON document, everything in bytes");
  const CLI::Option* seed_tables = add_switch(
      "--seed-tables", "The tables of the project's source documents instead");
  plan->callback([options, search, json, seed_tables] {
    if (search.is_on() && !is_on(*seed_tables)) {
      std::cout << search.run(options.read(), is_on(*json));
      return;
    }
    if (!is_on(*seed_tables)) {
      const PlanReport report = make_report(options.read());
      std::cout << (is_on(*json) ? json_of(report) : text_of(report));
      return;
    }
    if (options.any_given() || search.is_on()) {
      throw ConfigError(
          "--seed-tables are of fixed models: expected no flag but --json");
    }
    std::cout << (is_on(*json) ? seed_tables_json() : seed_tables_text());
  });
}

} // namespace fsdp::cli
