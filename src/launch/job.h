#pragma once
// A job as the launcher hands it to the guardian: checked, ready to start.

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace fsdp::detail {

struct RankPlan {
  int rank = 0;
  std::vector<std::string> environment; ///< "NAME=value"
};

struct Job {
  std::string program;                ///< path to execute
  std::vector<std::string> arguments; ///< argv, the name first
  std::vector<RankPlan> ranks;
  UniqueFd listener; ///< for the first rank of the plan, if it is rank 0
  std::vector<UniqueFd> logs; ///< one a rank, or none at all
  /// One rank on a terminal: it has the terminal itself and nothing is relayed.
  bool direct = false;
  sigset_t signal_mask{}; ///< of the ranks
  pid_t launcher_group = 0;
};

} // namespace fsdp::detail
