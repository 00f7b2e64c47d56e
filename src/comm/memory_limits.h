#pragma once
// How much memory this process may still take.

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

struct MemoryLimit {
  std::uint64_t available_bytes = 0;
  std::string source; ///< "MemAvailable of /proc/meminfo", a cgroup's file
};

/// The smallest of the machine's available memory and what each cgroup (v1 or
/// v2) above this process has left, page cache that can be dropped included.
/// `root` is where /proc and the cgroup file
/// systems are looked for: tests read a tree of their own.
MemoryLimit available_memory(const std::filesystem::path& root = "/");

} // namespace fsdp
