#include "cli/train_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/option_value.h"
#include "fsdp/error.h"
#include "fsdp/process_group.h"
#include "train/config.h"
#include "train/console.h"
#include "train/json_log.h"
#include "train/run_on_ranks.h"
#include "train/trainer.h"

namespace fsdp::cli {

namespace {

constexpr const char* kFooter =
    R"(The launcher says how many ranks there are. Keys of a configuration file are the
names above without dashes; flags win over it:

  fsdp run -n 2 -- fsdp train --preset bytes --minutes 3
  fsdp run -n 4 -- fsdp train --config run.toml --steps 300
)";

/// The key and value pairs of a TOML or INI file, as settings.
std::vector<Setting> read_config(const std::string& path) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError("--config '" + path + "': " + what);
  };
  if (path.empty()) {
    fail("expected a file of settings");
  }
  // A folder can be opened, and reads as if it were empty.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail("is a folder, expected a file of settings");
  }
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
  run_on_ranks(world, [&] {
    if (!options.log_json.empty() && world.rank() == 0) {
      observers.push_back(&log.emplace(options.log_json));
    }
    Trainer(options, world, observers).run();
  });
}

/// The options of the command line, as CLI11 owns them.
struct Flags {
  CLI::Option* config = nullptr;
  std::vector<CLI::Option*> settings; ///< by place in train_flags()
};

/// The user's, the file's, the command line's: the last wins.
std::vector<Setting> settings_of(const Flags& flags) {
  std::vector<Setting> settings = environment_settings();
  if (const auto path = value_of(*flags.config)) {
    std::ranges::move(read_config(*path), std::back_inserter(settings));
  }
  for (std::size_t i = 0; i < flags.settings.size(); ++i) {
    if (const auto value = value_of(*flags.settings[i])) {
      settings.emplace_back(train_flags()[i].name, *value);
    }
  }
  return settings;
}

/// The help with the default, where one holds for all presets.
std::string help_of(const TrainFlag& flag) {
  const std::string by_default = flag.get(make_train_options({}));
  const auto is_same = [&](const Preset& preset) {
    return flag.get(make_train_options(
               {{"preset", std::string(preset.name)}})) == by_default;
  };
  const bool is_choice = flag.name == "preset";
  const bool is_told = flag.value.empty() || by_default.empty() ||
                       flag.help.find("default:") != std::string::npos;
  return is_choice || (!is_told && std::ranges::all_of(presets(), is_same))
             ? flag.help + " (default: " + by_default + ")"
             : flag.help;
}

std::string footer() {
  std::string text = "\nPresets:\n";
  for (const Preset& preset : presets()) {
    std::string name(preset.name);
    name.resize(8, ' ');
    text += "  " + name + std::string(preset.summary) + "\n";
  }
  return text + "\n" + kFooter;
}

/// An option whose text value_of() reads.
CLI::Option* add_text(
    CLI::App& app,
    const std::string& name,
    const std::string& value,
    const std::string& help) {
  CLI::Option* option =
      value.empty() ? app.add_flag("--" + name, help)
                    : app.add_option("--" + name, CLI::callback_t{}, help)
                          ->type_name(value);
  return option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

} // namespace

void register_train(CLI::App& app) {
  CLI::App* train = app.add_subcommand(
      "train",
      "Train a model, sharded over the ranks that the launcher started");
  train->footer(footer());
  const auto flags = std::make_shared<Flags>();
  flags->config =
      add_text(*train, "config", "FILE", "File of settings, TOML or INI");
  for (const TrainFlag& flag : train_flags()) {
    flags->settings.push_back(
        add_text(*train, flag.name, flag.value, help_of(flag)));
  }
  train->callback([flags] {
    const TrainOptions options = make_train_options(settings_of(*flags));
    with_one_line_errors([&] { run_train(options); });
  });
}

} // namespace fsdp::cli
