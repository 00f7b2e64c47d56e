#pragma once
// Models that are known by name.

#include <string>
#include <string_view>
#include <vector>

#include "plan/transformer.h"

namespace fsdp::plan {

/// By name, case and '-', '_' aside. Throws ConfigError with the nearest name.
Transformer find_model(std::string_view name);

/// Every name that find_model knows, smaller models of a family first.
std::vector<std::string> model_names();

} // namespace fsdp::plan
