#include "comm/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "core/cgroup.h"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

// The number behind `key` in a file of "key value" or "key: value kB" lines.
std::optional<std::uint64_t> read_field(
    const fs::path& path, const std::string& key) {
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
std::optional<std::uint64_t> read_number(const fs::path& path) {
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

void apply_group(MemoryLimit& best, const ControlGroup& group) {
  const Files& files = group.is_v2 ? kVersion2 : kVersion1;
  const auto limit = read_number(group.folder / files.limit);
  const auto usage = read_number(group.folder / files.usage);
  if (limit && usage) {
    const std::uint64_t dropped =
        read_field(group.folder / "memory.stat", files.reclaimable).value_or(0);
    const std::uint64_t used = *usage - std::min(*usage, dropped);
    take_smaller(
        best, *limit - std::min(*limit, used), group.folder / files.limit);
  }
}

} // namespace

MemoryLimit available_memory(const fs::path& root) {
  MemoryLimit best{
      std::numeric_limits<std::uint64_t>::max(), "no limit that is known"};
  const fs::path meminfo = root / "proc/meminfo";
  if (const auto kilobytes = read_field(meminfo, "MemAvailable:")) {
    take_smaller(
        best, *kilobytes * 1024, "MemAvailable of " + meminfo.string());
  }
  for (const ControlGroup& group : control_groups("memory", root)) {
    apply_group(best, group);
  }
  return best;
}

} // namespace fsdp
