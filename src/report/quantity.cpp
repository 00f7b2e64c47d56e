#include "report/quantity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace fsdp::report {

namespace {

const Unit& largest_of(std::span<const Unit> units, double value) {
  for (const Unit& unit : units) {
    if (std::abs(value) >= unit.scale) {
      return unit;
    }
  }
  return units.back();
}

std::string fixed(double value, int decimals) {
  std::array<char, 400> text{}; // of any double
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

} // namespace

std::span<const Unit> byte_units() {
  static constexpr std::array kUnits{
      Unit{1e15, "PB"},
      Unit{1e12, "TB"},
      Unit{1e9, "GB"},
      Unit{1e6, "MB"},
      Unit{1e3, "kB"},
      Unit{1, "B"}};
  return kUnits;
}

std::span<const Unit> second_units() {
  static constexpr std::array kUnits{
      Unit{1, "s"}, Unit{1e-3, "ms"}, Unit{1e-6, "us"}};
  return kUnits;
}

Unit unit_of_bytes(double largest) {
  return largest_of(byte_units(), largest);
}

Unit unit_of_seconds(double largest) {
  return largest_of(second_units(), largest);
}

std::string number_text(double value) {
  constexpr int kDigits = 4;
  constexpr int kMostDecimals = 9;
  if (value == 0 || !std::isfinite(value)) {
    return value == 0 ? "0" : "-";
  }
  const int before = static_cast<int>(std::floor(std::log10(std::abs(value))));
  return fixed(value, std::clamp(kDigits - 1 - before, 0, kMostDecimals));
}

std::string with_unit(double value, const Unit& unit) {
  return number_text(value / unit.scale) + " " + unit.name;
}

std::string percent_text(double share) {
  return fixed(100 * share, 1) + " %";
}

std::string count_text(double count) {
  static constexpr std::array kUnits{
      Unit{1e12, " T"}, Unit{1e9, " B"}, Unit{1e6, " M"}, Unit{1, ""}};
  const Unit& unit = largest_of(kUnits, count);
  const double number = count / unit.scale;
  const int decimals = number < 9.995 ? 2 : number < 99.95 ? 1 : 0;
  return fixed(number, unit.scale == 1 ? 0 : decimals) + unit.name;
}

bool spread_widely(std::span<const double> values) {
  constexpr double kMany = 50;
  double least = 0;
  double most = 0;
  for (const double value : values) {
    if (std::isnan(value)) {
      continue;
    }
    if (value <= 0) {
      return false;
    }
    least = least == 0 ? value : std::min(least, value);
    most = std::max(most, value);
  }
  return most > kMany * least;
}

} // namespace fsdp::report
