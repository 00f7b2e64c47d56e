#include "cli/option_value.h"

#include <CLI/CLI.hpp>

#include "fsdp/error.h"

namespace fsdp::cli {

CLI::Option* add_option(
    CLI::App& command,
    const std::string& names,
    const std::string& value,
    const std::string& help) {
  CLI::Option* option =
      value.empty() ? command.add_flag(names, help)
                    : command.add_option(names, CLI::callback_t{}, help)
                          ->type_name(value);
  // value_of() complains of a second one.
  return option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::optional<std::string> value_of(const CLI::Option& option) {
  if (option.count() == 0) {
    return std::nullopt;
  }
  if (option.count() > 1) {
    std::string values;
    for (const std::string& value : option.results()) {
      values += (values.empty() ? "'" : ", '") + value + "'";
    }
    throw ConfigError(
        name_of(option) + " is given " + std::to_string(option.count()) +
        " times (" + values + "): expected it once at most");
  }
  return option.results().front();
}

bool is_on(const CLI::Option& option) {
  const auto given = value_of(option);
  if (given && *given != "true" && *given != "false") {
    throw ConfigError(
        name_of(option) + " '" + *given + "': expected true or false");
  }
  return given == "true";
}

std::string name_of(const CLI::Option& option) {
  return option.get_snames().empty() ? "--" + option.get_lnames().front()
                                     : "-" + option.get_snames().front();
}

} // namespace fsdp::cli
