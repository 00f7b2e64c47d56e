#include "cli/option_value.h"

#include <CLI/CLI.hpp>

#include "fsdp/error.h"

namespace fsdp::cli {

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

std::string name_of(const CLI::Option& option) {
  return option.get_snames().empty() ? "--" + option.get_lnames().front()
                                     : "-" + option.get_snames().front();
}

} // namespace fsdp::cli
