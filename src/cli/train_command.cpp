#include "cli/train_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/c10d/run_together.h"
#include "fsdp/error.h"
#include "fsdp/process_group.h"
#include "train/config.h"
#include "train/console.h"
#include "train/json_log.h"
#include "train/trainer.h"

namespace fsdp::cli {

namespace {

constexpr const char* kFooter = R"(
The launcher says how many ranks there are. Keys of a configuration file are the
names above without dashes; flags win over it:

  fsdp run -n 2 -- fsdp train --preset bytes --minutes 3
  fsdp run -n 4 -- fsdp train --config run.toml --steps 300
)";

/// The key and value pairs of a TOML or INI file, as settings.
std::vector<Setting> read_config(const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError("--config '" + path + "': " + what);
  };
  std::ifstream file(path);
  std::vector<CLI::ConfigItem> items;
  try {
    if (!file) {
      fail("cannot be read");
    }
    items = CLI::ConfigTOML().from_config(file);
  } catch (const CLI::Error& error) {
    fail(error.what());
  }
  std::vector<Setting> settings;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") {
      fail("sections are not known here, name the keys without one");
    }
    if (item.inputs.size() != 1) {
      fail("'" + item.fullname() + "' needs exactly one value");
    }
    settings.emplace_back(item.fullname(), item.inputs.front());
  }
  try {
    make_train_options(settings);
  } catch (const ConfigError& error) {
    fail(error.what());
  }
  return settings;
}

/// Live lines go to a terminal, or through a launcher that draws them on one.
Console::Style choose_style() {
  const char* relayed = std::getenv("FSDP_LIVE_LINE");
  const bool live = isatty(STDOUT_FILENO) != 0 ||
                    (relayed != nullptr && std::string(relayed) == "1");
  return live ? Console::Style::kLiveLine : Console::Style::kLines;
}

void run_train(const TrainOptions& options) {
  const ProcessGroup world = init_process_group(
      {.backend = options.backend, .timeout = options.timeout});
  Console console(std::cout, choose_style());
  std::vector<TrainObserver*> observers{&console};
  std::optional<JsonLog> log;
  run_together(world, [&] {
    if (!options.log_json.empty() && world.rank() == 0) {
      observers.push_back(&log.emplace(options.log_json));
    }
    Trainer(options, world, observers).run();
  });
}

struct FlagTexts {
  std::string config;
  std::vector<std::string> values; ///< by place in train_flags()
  std::vector<CLI::Option*> flags;
};

std::vector<Setting> settings_of(const FlagTexts& texts) {
  std::vector<Setting> settings = environment_settings();
  if (!texts.config.empty()) {
    std::ranges::move(read_config(texts.config), std::back_inserter(settings));
  }
  for (std::size_t i = 0; i < texts.flags.size(); ++i) {
    const TrainFlag& flag = train_flags()[i];
    if (texts.flags[i]->count() > 0) {
      settings.emplace_back(
          flag.name, flag.value.empty() ? "true" : texts.values[i]);
    }
  }
  return settings;
}

} // namespace

void register_train(CLI::App& app) {
  CLI::App* train = app.add_subcommand(
      "train",
      "Train a model, sharded over the ranks that the launcher started");
  train->footer(kFooter);
  const auto texts = std::make_shared<FlagTexts>();
  texts->values.resize(train_flags().size());
  train->add_option("--config", texts->config, "File of settings, TOML or INI")
      ->type_name("FILE");
  for (std::size_t i = 0; i < train_flags().size(); ++i) {
    const TrainFlag& flag = train_flags()[i];
    texts->flags.push_back(
        flag.value.empty()
            ? static_cast<CLI::Option*>(
                  train->add_flag("--" + flag.name, flag.help))
            : train->add_option("--" + flag.name, texts->values[i], flag.help)
                  ->type_name(flag.value));
    // So that a script's flags can be followed by its user's.
    texts->flags.back()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  train->callback(
      [texts] { run_train(make_train_options(settings_of(*texts))); });
}

} // namespace fsdp::cli
