#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace fsdp {

/// The whole text as a decimal int; empty for anything else.
inline std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end) {
    return std::nullopt;
  }
  return value;
}

/// Whether the text is a whole number, of any size: one that a parser refuses
/// is too large for it.
inline bool is_digits(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

} // namespace fsdp
