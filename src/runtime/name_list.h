#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace fsdp {

/// For texts: "'a', 'b'", or the first ten "and 7 more".
inline std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kMostNames) {
    text += " and " + std::to_string(names.size() - kMostNames) + " more";
  }
  return text;
}

} // namespace fsdp
