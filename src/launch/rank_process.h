#pragma once
// Starting one rank.

#include <sys/types.h>

#include <array>
#include <cstddef>

#include "core/unique_fd.h"
#include "launch/job.h"

namespace fsdp::detail {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1; ///< also its process group, unless the job is direct
  std::array<UniqueFd, 2> output; ///< stdout, stderr; non-blocking
  bool ended = false;
};

/// Starts rank `index` of the plan: in a process group of its own, so that a
/// signal from the terminal reaches it once, through the launcher; killed by
/// the kernel when this process dies. The first rank gets stdin, unless that is
/// a terminal, and the listener. Throws ProgramError if the program cannot be
/// executed, Error if the machine refuses a process or a pipe.
RankProcess start_rank(const Job& job, std::size_t index);

} // namespace fsdp::detail
