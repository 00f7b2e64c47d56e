#include "cli/suggestion.h"

#include <algorithm>

#include "core/nearest_name.h"

namespace fsdp::cli {

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  return text;
}

std::string suggest(
    std::string_view wrong, const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(wrong, names);
  const std::size_t near = std::max<std::size_t>(2, wrong.size() / 3);
  if (!names.empty() && edit_distance(wrong, nearest) <= near) {
    return "did you mean " + nearest + "?";
  }
  return "expected " + list(names);
}

} // namespace fsdp::cli
