#pragma once
// The trainer's settings as flags of a command.

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "train/config.h"

namespace CLI {
class App;
class Option;
} // namespace CLI

namespace fsdp::cli {

class SettingFlags {
 public:
  /// Adds --config and the trainer's flags to `command`, which outlives this:
  /// all of them, or those that `takes`.
  explicit SettingFlags(
      CLI::App& command,
      const std::function<bool(std::string_view name)>& takes = nullptr);

  /// Of the user's environment, then the file's, then the command line's: the
  /// last wins. Throws ConfigError for a file or a value that is none.
  std::vector<Setting> read() const;

 private:
  CLI::Option* config_;
  struct Flag {
    std::string name;
    CLI::Option* option;
  };
  std::vector<Flag> flags_;
};

/// The presets, a line each.
std::string preset_lines();

} // namespace fsdp::cli
