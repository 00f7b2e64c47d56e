#include "cli/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>

#include "report/quantity.h"

namespace fsdp::cli {

namespace {

using report::Unit;

/// Three digits of `value` in the largest unit of `units` (the largest first)
/// that it reaches when rounded; whole numbers of the last one.
std::string scaled(double value, std::span<const Unit> units) {
  std::array<char, 64> text{};
  for (const Unit& unit : units) {
    const double number = value / unit.scale;
    const bool last = &unit == &units.back();
    if (std::abs(number) < 0.9995 && !last) {
      continue;
    }
    const double size = std::abs(number);
    const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
    std::snprintf(
        text.data(),
        text.size(),
        "%.*f%s%s",
        last && unit.scale == 1 ? 0 : decimals,
        number,
        *unit.name == '\0' ? "" : " ",
        unit.name);
    break;
  }
  return text.data();
}

double scale_of(char suffix) {
  switch (suffix) {
    case 'k':
    case 'K':
      return 1e3;
    case 'm':
    case 'M':
      return 1e6;
    case 'b':
    case 'B':
    case 'g':
    case 'G':
      return 1e9;
    case 't':
    case 'T':
      return 1e12;
    default:
      return 1;
  }
}

} // namespace

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, whole);
  if (!text.empty() && result.ec == std::errc() && result.ptr == end) {
    return whole < 0 ? std::nullopt : std::optional(whole);
  }
  const double scale = text.empty() ? 1 : scale_of(text.back());
  if (scale > 1) {
    text.remove_suffix(1);
  }
  const auto number = parse_real(text);
  constexpr double kMost = 9.2e18; // of 64 bits
  if (!number || *number < 0 || *number > kMost / scale) {
    return std::nullopt;
  }
  const double count = *number * scale;
  const double whole_count = std::round(count);
  // 1.1 x 1e9 may be off by what a double cannot hold.
  if (std::abs(count - whole_count) > 1e-6) {
    return std::nullopt;
  }
  return std::llround(count);
}

std::string bytes_text(double bytes) {
  return scaled(bytes, report::byte_units());
}

std::string count_text(double count) {
  static constexpr std::array kUnits{
      Unit{1e12, "T"}, Unit{1e9, "B"}, Unit{1e6, "M"}, Unit{1, ""}};
  return scaled(count, kUnits);
}

std::string seconds_text(double seconds) {
  return seconds == 0 ? "0 s" : scaled(seconds, report::second_units());
}

} // namespace fsdp::cli
