#pragma once
// The processes below this one, however they got there.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <set>
#include <vector>

namespace fsdp::detail {

/// From now on an orphan among the descendants, a daemon too, becomes a child
/// of this process instead of init's.
void become_subreaper();

/// Children, their children and so on, zombies left out. The trees below the
/// pids of `except` do not count.
std::vector<pid_t> descendants(const std::set<pid_t>& except = {});

/// Sends the signal to all of them; returns how many there were.
std::size_t signal_descendants(int signal, const std::set<pid_t>& except = {});

/// SIGKILL to all of them, again and again, since some may be forking, until
/// none is left. Reaps children. Returns who is left after `timeout` (a process
/// of another user, or stuck in the kernel).
std::vector<pid_t> kill_descendants(
    std::chrono::milliseconds timeout, const std::set<pid_t>& except = {});

} // namespace fsdp::detail
