#pragma once
// Looking up what is known by name, with help for a name that is not.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/nearest_name.h"
#include "fsdp/error.h"

namespace fsdp::plan {

/// Letters in lower case and digits, nothing else.
inline std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      plain += upper ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return plain;
}

/// Of `names`, those that begin with `wrong`, else the one with the fewest
/// edits: "a100" means both A100-SXM-40GB and A100-SXM-80GB.
inline std::string nearest_names(
    std::string_view wrong, const std::vector<std::string>& names) {
  const std::string begin = plain_name(wrong);
  std::string nearest;
  for (const std::string& name : names) {
    if (!begin.empty() && plain_name(name).starts_with(begin)) {
      nearest += (nearest.empty() ? "'" : ", '") + name + "'";
    }
  }
  return nearest.empty() ? "'" + nearest_name(wrong, names) + "'" : nearest;
}

/// The item of `items` called `name`, case and '-', '_' aside. Throws
/// ConfigError, saying that this `what` is unknown, with the nearest names.
template <typename Item>
const Item& find_by_name(
    const char* what, std::span<const Item> items, std::string_view name) {
  std::vector<std::string> names;
  for (const Item& item : items) {
    if (!name.empty() && plain_name(item.name) == plain_name(name)) {
      return item;
    }
    names.push_back(item.name);
  }
  std::string list;
  for (const std::string& known : names) {
    list += (list.empty() ? "" : ", ") + known;
  }
  throw ConfigError(
      std::string(what) + " '" + std::string(name) +
      "' is unknown: the nearest is " + nearest_names(name, names) +
      "; known are " + list);
}

} // namespace fsdp::plan
