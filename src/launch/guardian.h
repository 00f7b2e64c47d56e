#pragma once
// The process between the launcher and the ranks.
//
//   launcher  (what the user started: holds the terminal, forwards signals)
//     guardian  (parent of the ranks: relays output, decides who failed first)
//       rank 0, rank 1, ...
//         whatever the ranks start
//
// Both are subreapers, so no process below can get out of sight by making
// itself an orphan. If the launcher dies, however it dies, the guardian reads
// the end of `control` and kills all that is below it. If the guardian dies,
// the kernel kills the ranks, whose orphans become the launcher's, which kills
// them.

#include <cstdint>

#include "launch/job.h"

namespace fsdp::detail {

/// What the launcher writes to the guardian, one byte each: the number of a
/// signal to forward, or kKillNow.
inline constexpr std::uint8_t kKillNow = 255;

/// Runs in the forked guardian; returns the exit status of the job. `control`
/// is the end of a pipe of which the launcher alone holds the other one. The
/// caller has blocked SIGINT, SIGTERM, SIGHUP and SIGCHLD.
int guard_job(Job job, UniqueFd control) noexcept;

} // namespace fsdp::detail
