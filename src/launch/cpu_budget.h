#pragma once
// How many CPU cores this process may really use.

#include <filesystem>
#include <optional>

namespace fsdp::detail {

/// The tightest CPU limit of the control groups of this process, in cores (may
/// be fractional), from cgroup v1 or v2; empty if there is none. `root` is
/// where /proc and the cgroup file systems are looked for.
std::optional<double> cgroup_cpu_limit(const std::filesystem::path& root = "/");

/// Cores that the scheduler's affinity mask allows.
int affinity_cores();

/// max(1, cores / ranks), where cores is the affinity mask cut to the limit.
int threads_per_rank(int cores, std::optional<double> limit, int num_ranks);

} // namespace fsdp::detail
