#pragma once
// Which rank failed first, and how the launcher tells.

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::detail {

/// How one rank ended.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  int exit_code = 0;        ///< of a normal exit
  int signal = 0;           ///< that killed it, or 0
  bool after_stop = false;  ///< the launcher was already stopping the ranks
  bool blames_peer = false; ///< it gave up because another rank had failed

  bool failed() const { return signal != 0 || exit_code != 0; }
  /// As shells show it.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

/// True if the status or the last lines say that the rank gave up only because
/// of another one: kExitAfterPeerFailure, an uncaught PeerError, or a line with
/// the text that such an error begins with, "[rank r] rank q ...".
bool blames_peer(const RankEnd& end, const std::deque<std::string>& last_lines);

/// Index of the end that started the trouble, among ends in the order in which
/// they were seen. Ranks follow a dying peer within milliseconds and may even
/// overtake it, so a rank that a signal killed goes before one that exited (but
/// SIGABRT does not: it is how an uncaught exception ends, a follower's too),
/// and one that blames a peer comes last. Empty if no end is a failure.
std::optional<std::size_t> first_failure(const std::vector<RankEnd>& ends);

/// "killed by SIGSEGV (signal 11)" or "exit code 3".
std::string describe_end(const RankEnd& end);

/// "SIGSEGV"
std::string signal_name(int signal);

} // namespace fsdp::detail
