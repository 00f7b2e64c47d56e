#pragma once
// What runs and what is left on this machine, from /proc: for tests that check
// that nothing stays behind.

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

/// The whole of a (small or /proc) file; empty if it cannot be read.
inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text; // iterators throw if a process ends meanwhile
  text << file.rdbuf();
  return text.str();
}

inline std::vector<pid_t> all_processes() {
  std::vector<pid_t> pids;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", ignored)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0)
      pids.push_back(pid);
  }
  return pids;
}

/// State and parent of a process ("Z" is a zombie); nullopt if there is none.
inline std::optional<std::pair<char, pid_t>> process_state(pid_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos)
    return std::nullopt;
  const char* rest = stat.c_str() + name_end + 2;
  return std::pair{rest[0], static_cast<pid_t>(std::atoi(rest + 2))};
}

/// Alive: exists and is no zombie.
inline bool process_is_alive(pid_t pid) {
  const auto state = process_state(pid);
  return state && state->first != 'Z' && state->first != 'X';
}

/// Living children, grandchildren and so on of a process.
inline std::vector<pid_t> descendants(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : all_processes()) {
    const auto state = process_state(pid);
    if (state)
      children.emplace(state->second, pid);
  }
  std::vector<pid_t> found;
  std::vector<pid_t> open{root};
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto it = begin; it != end; ++it) {
      open.push_back(it->second);
      if (process_is_alive(it->second))
        found.push_back(it->second);
    }
  }
  return found;
}

/// Living processes whose initial environment holds "NAME=value".
inline std::vector<pid_t> processes_with_variable(const std::string& setting) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    if (pid == getpid() || !process_is_alive(pid))
      continue;
    const std::string block =
        '\0' + read_text("/proc/" + std::to_string(pid) + "/environ");
    if (block.find('\0' + setting + '\0') != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

/// Names in /dev/shm: compare before and after.
inline std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator("/dev/shm", ignored))
    names.insert(entry.path().filename());
  return names;
}

/// True if some process of this network namespace listens on the TCP port.
inline bool port_is_listening(int port) {
  std::array<char, 8> hex{};
  std::snprintf(hex.data(), hex.size(), ":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string slot, local, remote, state;
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      fields >> slot >> local >> remote >> state;
      if (state == "0A" && local.ends_with(hex.data()))
        return true;
    }
  }
  return false;
}

} // namespace fsdp::testing
