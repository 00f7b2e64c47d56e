#include "cli/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace fsdp::cli {

namespace {

/// Levenshtein distance, letters alike whatever their case.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  const auto lower = [](char c) {
    return std::tolower(static_cast<unsigned char>(c));
  };
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced =
          diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

} // namespace

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

std::string suggest(
    std::string_view wrong, const std::vector<std::string>& names) {
  const auto nearest = std::min_element(
      names.begin(), names.end(), [&](const auto& a, const auto& b) {
        return edits(wrong, a) < edits(wrong, b);
      });
  const size_t near = std::max<size_t>(2, wrong.size() / 3);
  if (nearest != names.end() && edits(wrong, *nearest) <= near)
    return "did you mean " + *nearest + "?";
  return "expected " + list(names);
}

} // namespace fsdp::cli
