#include "launch/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace fsdp::detail {

namespace {

namespace fs = std::filesystem;

/// Where a cgroup hierarchy that may limit CPU time is mounted, and the group
/// of this process in it.
struct Hierarchy {
  fs::path mount;
  fs::path mounted_group; ///< the group that `mount` shows
  fs::path group;
  bool v2 = false;
};

fs::path below(const fs::path& root, const fs::path& absolute) {
  return root / absolute.relative_path();
}

bool names_cpu(std::string_view comma_list) {
  return ("," + std::string(comma_list) + ",").find(",cpu,") !=
         std::string::npos;
}

/// Group of this process: for v2 of the line "0::/path", for v1 of the line
/// whose controllers include cpu.
std::optional<fs::path> own_group(const fs::path& root, bool v2) {
  std::ifstream file(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos)
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : names_cpu(controllers))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    // id parent device root mount options [tags] - type source super-options
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos)
      continue;
    std::istringstream left(line.substr(0, dash));
    std::istringstream right(line.substr(dash + 3));
    std::string id, parent, device, shown, mount, type, source, super;
    left >> id >> parent >> device >> shown >> mount;
    right >> type >> source >> super;
    const bool v2 = type == "cgroup2";
    if (!v2 && !(type == "cgroup" && names_cpu(super)))
      continue;
    if (const auto group = own_group(root, v2))
      found.push_back({below(root, mount), shown, *group, v2});
  }
  return found;
}

std::optional<double> limit_of_group(const fs::path& folder, bool v2) {
  double quota = 0;
  double period = 0;
  if (v2) {
    std::ifstream(folder / "cpu.max") >> quota >> period; // "max 100000": none
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota; // -1: none
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0)
    return std::nullopt;
  return quota / period;
}

} // namespace

std::optional<double> cgroup_cpu_limit(const fs::path& root) {
  std::optional<double> tightest;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    // In a container the mount often shows the container's own group as its
    // root, while the group is named as the host sees it.
    fs::path group =
        hierarchy.group.lexically_relative(hierarchy.mounted_group);
    if (group.empty() || *group.begin() == "..")
      group = ".";
    for (fs::path folder = (hierarchy.mount / group).lexically_normal();;
         folder = folder.parent_path()) {
      if (!folder.has_filename()) // a trailing slash
        folder = folder.parent_path();
      if (const auto limit = limit_of_group(folder, hierarchy.v2))
        tightest = std::min(tightest.value_or(*limit), *limit);
      if (folder == hierarchy.mount || folder == folder.parent_path())
        break;
    }
  }
  return tightest;
}

int affinity_cores() {
  for (int size = CPU_SETSIZE; size <= (1 << 20); size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    const int cores = fits ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (fits)
      return std::max(1, cores);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int threads_per_rank(int cores, std::optional<double> limit, int num_ranks) {
  const double usable = std::min<double>(cores, limit.value_or(cores));
  return std::max(1, static_cast<int>(usable / num_ranks));
}

} // namespace fsdp::detail
