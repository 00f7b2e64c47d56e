#include "cli/setting_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>

#include "cli/option_value.h"
#include "fsdp/error.h"

namespace fsdp::cli {

namespace {

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

} // namespace

SettingFlags::SettingFlags(
    CLI::App& command, const std::function<bool(std::string_view name)>& takes)
    : config_(add_option(
          command, "--config", "FILE", "File of settings, TOML or INI")) {
  for (const TrainFlag& flag : train_flags()) {
    if (!takes || takes(flag.name)) {
      flags_.push_back(
          {flag.name,
           add_option(command, "--" + flag.name, flag.value, help_of(flag))});
    }
  }
}

std::vector<Setting> SettingFlags::read() const {
  std::vector<Setting> settings = environment_settings();
  if (const auto path = value_of(*config_)) {
    std::ranges::move(read_config(*path), std::back_inserter(settings));
  }
  for (const Flag& flag : flags_) {
    if (const auto value = value_of(*flag.option)) {
      settings.emplace_back(flag.name, *value);
    }
  }
  return settings;
}

std::string preset_lines() {
  std::string text;
  for (const Preset& preset : presets()) {
    std::string name(preset.name);
    name.resize(8, ' ');
    text += "  " + name + std::string(preset.summary) + "\n";
  }
  return text;
}

} // namespace fsdp::cli
