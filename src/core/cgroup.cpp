#include "core/cgroup.h"

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace fsdp {

namespace {

namespace fs = std::filesystem;

bool is_in(std::string_view comma_list, std::string_view name) {
  const std::string list = ',' + std::string(comma_list) + ',';
  return list.find(',' + std::string(name) + ',') != std::string::npos;
}

/// Group of this process: for version 2 of the line "0::/path", for version 1
/// of the line whose controllers include this one.
std::optional<fs::path> own_group(
    const fs::path& root, std::string_view controller, bool is_v2) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : is_in(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

/// `group` and those around it, in a hierarchy whose group `shown` is mounted
/// at `mount`.
void add_groups(
    std::vector<ControlGroup>& groups,
    const fs::path& mount,
    const fs::path& shown,
    const fs::path& group,
    bool is_v2) {
  fs::path inside = group.lexically_relative(shown);
  if (inside.empty() || *inside.begin() == "..") {
    inside = ".";
  }
  fs::path folder = (mount / inside).lexically_normal();
  while (true) {
    if (!folder.has_filename()) { // a trailing slash
      folder = folder.parent_path();
    }
    groups.push_back({folder, is_v2});
    if (folder == mount || folder == folder.parent_path()) {
      return;
    }
    folder = folder.parent_path();
  }
}

} // namespace

std::vector<ControlGroup> control_groups(
    std::string_view controller, const fs::path& root) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root / "proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    // id parent device root mount options [tags] - type source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string id, parent, device, shown, mount, type, source, super;
    left >> id >> parent >> device >> shown >> mount;
    right >> type >> source >> super;
    const bool is_v2 = type == "cgroup2";
    if (!is_v2 && !(type == "cgroup" && is_in(super, controller))) {
      continue;
    }
    if (const auto group = own_group(root, controller, is_v2)) {
      const fs::path place = root / fs::path(mount).relative_path();
      add_groups(groups, place, shown, *group, is_v2);
    }
  }
  return groups;
}

} // namespace fsdp
