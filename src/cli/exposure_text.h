#pragma once
// Which units wait for communication, for people and for scripts.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "plan/timeline.h"

namespace fsdp::cli {

/// A table of the first eight, those that wait for nothing left out, behind an
/// empty line; "" if none waits.
std::string exposed_units_text(std::span<const plan::UnitExposure> units);

nlohmann::ordered_json exposed_units_json(
    std::span<const plan::UnitExposure> units);

} // namespace fsdp::cli
