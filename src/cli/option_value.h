#pragma once
// What the command line gives for an option.

#include <optional>
#include <string>

namespace CLI {
class Option;
}

namespace fsdp::cli {

/// The option's text ("true" for a switch that stands alone), or nothing where
/// it is not given. Throws ConfigError if it is given more than once: CLI11
/// has its own words for that, or takes the last in silence.
std::optional<std::string> value_of(const CLI::Option& option);

/// "-n" or "--nnodes".
std::string name_of(const CLI::Option& option);

} // namespace fsdp::cli
