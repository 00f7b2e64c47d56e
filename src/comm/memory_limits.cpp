#include "comm/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace fsdp {

namespace {

// The number behind `key` in a file of "key value" or "key: value kB" lines.
std::optional<std::uint64_t> read_field(
    const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == key) {
      return value;
    }
  }
  return std::nullopt;
}

// Nothing for a file that is missing or says "max".
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

struct Files {
  const char* limit;
  const char* usage;
  const char* reclaimable; // in memory.stat
};
constexpr Files kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kVersion2{"memory.max", "memory.current", "inactive_file"};

void take_smaller(MemoryLimit& best, std::uint64_t bytes, std::string source) {
  if (bytes < best.available_bytes) {
    best = {bytes, std::move(source)};
  }
}

// Limits of a cgroup and of all that it lies in. Inside a container the path
// may not be visible; the mount point itself is then the container's own.
void apply_cgroup(
    MemoryLimit& best,
    const std::string& mount,
    std::string path,
    const Files& files) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path) + "/";
    const auto limit = read_number(folder + files.limit);
    const auto usage = read_number(folder + files.usage);
    if (limit && usage) {
      const std::uint64_t dropped =
          read_field(folder + "memory.stat", files.reclaimable).value_or(0);
      const std::uint64_t used = *usage - std::min(*usage, dropped);
      take_smaller(best, *limit - std::min(*limit, used), folder + files.limit);
    }
    if (path.empty() || path == "/") {
      return;
    }
    path.erase(path.rfind('/'));
  }
}

} // namespace

MemoryLimit available_memory(const std::string& root) {
  MemoryLimit best{
      std::numeric_limits<std::uint64_t>::max(), "no limit that is known"};
  const std::string meminfo = root + "/proc/meminfo";
  if (const auto kilobytes = read_field(meminfo, "MemAvailable:")) {
    take_smaller(best, *kilobytes * 1024, "MemAvailable of " + meminfo);
  }
  // Lines are "hierarchy:controllers:path"; hierarchy 0 is version 2.
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers =
        ',' + line.substr(first + 1, second - first - 1) + ',';
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      apply_cgroup(best, root + "/sys/fs/cgroup", path, kVersion2);
      apply_cgroup(best, root + "/sys/fs/cgroup/unified", path, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      apply_cgroup(best, root + "/sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return best;
}

} // namespace fsdp
