#include "core/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace fsdp {
namespace {

std::string folded(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = c == '_'
            ? '-'
            : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

} // namespace

std::size_t edit_distance(std::string_view from, std::string_view to) {
  const std::string a = folded(from);
  const std::string b = folded(to);
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return table[i * width + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const std::size_t replace = a[i - 1] == b[j - 1] ? 0 : 1;
      at(i, j) = std::min(
          {at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return table.back();
}

std::string nearest_name(
    std::string_view name, std::span<const std::string> candidates) {
  const auto best = std::ranges::min_element(
      candidates, {}, [&](const std::string& candidate) {
        return edit_distance(name, candidate);
      });
  return best == candidates.end() ? std::string() : *best;
}

} // namespace fsdp
