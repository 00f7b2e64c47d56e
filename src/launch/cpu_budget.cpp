#include "launch/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "core/cgroup.h"

namespace fsdp::detail {

namespace {

namespace fs = std::filesystem;

std::optional<double> limit_of_group(const fs::path& folder, bool v2) {
  double quota = 0;
  double period = 0;
  if (v2) {
    std::ifstream(folder / "cpu.max") >> quota >> period; // "max 100000": none
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota; // -1: none
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return quota / period;
}

} // namespace

std::optional<double> cgroup_cpu_limit(const fs::path& root) {
  std::optional<double> tightest;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    if (const auto limit = limit_of_group(group.folder, group.is_v2)) {
      tightest = std::min(tightest.value_or(*limit), *limit);
    }
  }
  return tightest;
}

int affinity_cores() {
  for (int size = CPU_SETSIZE; size <= (1 << 20); size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(size));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    const int cores = fits ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (fits) {
      return std::max(1, cores);
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int threads_per_rank(int cores, std::optional<double> limit, int num_ranks) {
  const double usable = std::min<double>(cores, limit.value_or(cores));
  return std::max(1, static_cast<int>(usable / num_ranks));
}

} // namespace fsdp::detail
