#include "cli/exposure_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "cli/units.h"

namespace fsdp::cli {

std::string exposed_units_text(std::span<const plan::UnitExposure> units) {
  constexpr std::size_t kListed = 8;
  constexpr double kNothing = 1e-9; // a trace has whole nanoseconds
  Table table({"most exposed units", "gathers", "reductions"});
  bool any = false;
  for (const plan::UnitExposure& unit :
       units.first(std::min(kListed, units.size()))) {
    if (unit.seconds() > kNothing) {
      table.add(
          {unit.unit, seconds_text(unit.unshard), seconds_text(unit.reduce)});
      any = true;
    }
  }
  return any ? "\n" + table.text() : "";
}

nlohmann::ordered_json exposed_units_json(
    std::span<const plan::UnitExposure> units) {
  auto list = nlohmann::ordered_json::array();
  for (const plan::UnitExposure& unit : units) {
    list.push_back(
        {{"unit", unit.unit},
         {"exposed_unshard_s", unit.unshard},
         {"exposed_reduce_s", unit.reduce}});
  }
  return list;
}

} // namespace fsdp::cli
