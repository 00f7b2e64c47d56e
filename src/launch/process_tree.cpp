#include "launch/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "core/unique_fd.h"

namespace fsdp::detail {

namespace {

using Clock = std::chrono::steady_clock;

struct Entry {
  pid_t pid;
  bool zombie;
};

std::optional<std::pair<pid_t, Entry>> read_entry(pid_t pid) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const UniqueFd fd(open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  if (!fd || read(fd.get(), text.data(), text.size() - 1) <= 0) {
    return std::nullopt;
  }
  // The name in parentheses may itself hold parentheses and blanks.
  const char* name_end = std::strrchr(text.data(), ')');
  char state = 0;
  int parent = 0;
  if (!name_end || std::sscanf(name_end + 1, " %c %d", &state, &parent) != 2) {
    return std::nullopt;
  }
  return std::pair{
      static_cast<pid_t>(parent), Entry{pid, state == 'Z' || state == 'X'}};
}

std::multimap<pid_t, Entry> children_by_parent() {
  std::multimap<pid_t, Entry> children;
  DIR* folder = opendir("/proc");
  if (!folder) {
    return children;
  }
  while (const dirent* item = readdir(folder)) {
    const pid_t pid = std::atoi(item->d_name);
    if (pid <= 0) {
      continue;
    }
    if (const auto entry = read_entry(pid)) {
      children.insert(*entry);
    }
  }
  closedir(folder);
  return children;
}

} // namespace

void become_subreaper() {
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

std::vector<pid_t> descendants(const std::set<pid_t>& except) {
  const auto children = children_by_parent();
  std::vector<pid_t> found;
  std::vector<pid_t> open{getpid()};
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto it = begin; it != end; ++it) {
      const Entry& entry = it->second;
      if (except.contains(entry.pid)) {
        continue;
      }
      open.push_back(entry.pid);
      if (!entry.zombie) {
        found.push_back(entry.pid);
      }
    }
  }
  return found;
}

std::size_t signal_descendants(int signal, const std::set<pid_t>& except) {
  const auto all = descendants(except);
  for (const pid_t pid : all) {
    kill(pid, signal);
  }
  return all.size();
}

std::vector<pid_t> kill_descendants(
    std::chrono::milliseconds timeout, const std::set<pid_t>& except) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = descendants(except);
    if (left.empty() || Clock::now() > deadline) {
      return left;
    }
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

} // namespace fsdp::detail
