#include "env/slurm_list.h"

#include <cctype>

#include "core/parse_int.h"

namespace fsdp::detail {

namespace {

bool is_host_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ||
         c == '_';
}

/// The first number of "01-03,07]...", and moves `rest` behind the bracket.
std::optional<std::string> first_of_range(std::string_view& rest) {
  const std::size_t end = rest.find(']');
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view range = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  if (range.find_first_not_of("0123456789-,") != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view number = range.substr(0, range.find_first_of("-,"));
  if (number.empty()) {
    return std::nullopt;
  }
  return std::string(number);
}

} // namespace

std::optional<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const char c = list.front();
    list.remove_prefix(1);
    if (c == '[') {
      const auto number = first_of_range(list);
      if (!number) {
        return std::nullopt;
      }
      host += *number;
    } else if (is_host_character(c)) {
      host += c;
    } else {
      return std::nullopt;
    }
  }
  if (host.empty()) {
    return std::nullopt;
  }
  return host;
}

std::optional<std::vector<int>> slurm_tasks_per_node(std::string_view list) {
  constexpr int kMaxNodes = 1 << 20;
  std::vector<int> tasks;
  while (true) {
    const std::size_t comma = list.find(',');
    std::string_view entry = list.substr(0, comma);
    int repeats = 1;
    const std::size_t bracket = entry.find("(x");
    if (bracket != std::string_view::npos) {
      if (!entry.ends_with(')')) {
        return std::nullopt;
      }
      const auto count =
          parse_int(entry.substr(bracket + 2, entry.size() - bracket - 3));
      if (!count || *count < 1 || *count > kMaxNodes) {
        return std::nullopt;
      }
      repeats = *count;
      entry = entry.substr(0, bracket);
    }
    const auto on_node = parse_int(entry);
    if (!on_node || *on_node < 1) {
      return std::nullopt;
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeats), *on_node);
    if (comma == std::string_view::npos) {
      return tasks;
    }
    list.remove_prefix(comma + 1);
  }
}

} // namespace fsdp::detail
