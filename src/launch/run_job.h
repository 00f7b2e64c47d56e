#pragma once
// `fsdp run`: starts the ranks of one node, relays their output, and ends with
// the status of the first that failed. guardian.h shows its processes,
// verdict.h how it tells the first failure from those that follow.

#include <climits>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {

inline constexpr int kMostRanksOnNode = 256; // two pipes each
inline constexpr int kMostNodes = INT_MAX / kMostRanksOnNode;

struct RunOptions {
  int num_ranks = 1; ///< on this node; the same on every node
  int num_nodes = 1;
  int node_rank = 0;
  std::optional<std::string> master_addr; ///< one node: 127.0.0.1
  std::optional<int> master_port;   ///< one node: 0 or none takes a free one
  std::string log_dir;              ///< empty: no log files
  std::vector<std::string> program; ///< and its arguments
};

/// A program that cannot be started: `status` is 127 if it was not found, 126
/// if it cannot be executed, as shells have it.
class ProgramError : public ConfigError {
 public:
  ProgramError(const std::string& text, int exit_status)
      : ConfigError(text), status(exit_status) {}
  const int status;
};

/// The status of a rank that gave up only because another rank failed
/// (PeerError, PeerDiedError). A program may end with it, as `fsdp train` does:
/// the launcher then goes on looking for the rank that failed first.
inline constexpr int kExitAfterPeerFailure = 75;

/// Runs the job to its end. Returns 0, the exit code of the first rank that
/// failed, or 128 + signal for a rank, or this process, that a signal ended.
/// Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
/// and MASTER_PORT set (environment.h); unless the caller has OMP_NUM_THREADS,
/// also that and, so that a program can tell our choice from a user's,
/// FSDP_DEFAULT_THREADS. This process's own environment stays as it is. Writes
/// to stdout and stderr; takes over SIGINT, SIGTERM, SIGHUP and SIGCHLD: call
/// it from main, before any thread is started, and return its result. Throws
/// ConfigError, or ProgramError, before anything is started.
int run_job(const RunOptions& options);

} // namespace fsdp
