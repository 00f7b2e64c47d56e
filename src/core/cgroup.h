#pragma once
// The control groups of Linux that limit this process.

#include <filesystem>
#include <string_view>
#include <vector>

namespace fsdp {

struct ControlGroup {
  std::filesystem::path folder; ///< holds the controller's files
  bool is_v2 = false;           ///< cgroup version 2; else 1
};

/// The groups in which `controller` ("cpu", "memory") may limit this process:
/// in each hierarchy its own group, then those around it up to the mount. In a
/// container the mount often shows the container's own group as its root, while
/// the group is named as the host sees it. `root` is where /proc and the cgroup
/// file systems are looked for: tests read a tree of their own.
std::vector<ControlGroup> control_groups(
    std::string_view controller, const std::filesystem::path& root = "/");

} // namespace fsdp
