#include "launch/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include "launch/run_job.h"

namespace fsdp::detail {

bool blames_peer(
    const RankEnd& end, const std::deque<std::string>& last_lines) {
  if (!end.failed() || (end.signal != 0 && end.signal != SIGABRT)) {
    return false;
  }
  if (end.exit_code == kExitAfterPeerFailure) {
    return true;
  }
  const std::string start = "[rank " + std::to_string(end.rank) + "] rank ";
  const auto blames = [&](const std::string& line) {
    // The C++ runtime names the type of an uncaught exception.
    return line.find("'fsdp::PeerError'") != std::string::npos ||
           line.find("'fsdp::PeerDiedError'") != std::string::npos ||
           line.find(start) != std::string::npos;
  };
  return std::any_of(last_lines.begin(), last_lines.end(), blames);
}

std::optional<std::size_t> first_failure(const std::vector<RankEnd>& ends) {
  const auto standing = [&](std::size_t i) {
    const RankEnd& end = ends[i];
    const bool killed = end.signal != 0 && end.signal != SIGABRT;
    return std::tuple(end.after_stop, end.blames_peer, !killed, i);
  };
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].failed() && (!first || standing(i) < standing(*first))) {
      first = i;
    }
  }
  return first;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

std::string describe_end(const RankEnd& end) {
  return end.signal != 0 ? "killed by " + signal_name(end.signal) +
                               " (signal " + std::to_string(end.signal) + ")"
                         : "exit code " + std::to_string(end.exit_code);
}

} // namespace fsdp::detail
