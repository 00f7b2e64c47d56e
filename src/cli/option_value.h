#pragma once
// Options whose text the commands read themselves, and what the command line
// gives for them.

#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
} // namespace CLI

namespace fsdp::cli {

/// `names`: "-n,--ranks"; `value`: what its value is called, empty for a
/// switch.
CLI::Option* add_option(
    CLI::App& command,
    const std::string& names,
    const std::string& value,
    const std::string& help);

/// The option's text ("true" for a switch that stands alone), or nothing where
/// it is not given. Throws ConfigError if it is given more than once: CLI11
/// has its own words for that, or takes the last in silence.
std::optional<std::string> value_of(const CLI::Option& option);

/// Whether a switch is on. Throws ConfigError for a value but true and false.
bool is_on(const CLI::Option& option);

/// "-n" or "--nnodes".
std::string name_of(const CLI::Option& option);

} // namespace fsdp::cli
