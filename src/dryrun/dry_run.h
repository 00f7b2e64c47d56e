#pragma once
// One rank's training step without memory, compute and peers: the real runtime
// on the dry device, over a communicator that counts.

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "fsdp/fully_shard.h"
#include "fsdp/memory.h"
#include "train/config.h"

namespace fsdp {

struct DryRunOptions {
  TrainOptions train; ///< its batch is that of all ranks
  int world_size = 1;
  int rank = 0;
};

/// What rank `rank` asked for. Bytes are exact for what the runtime, the
/// optimizer and autograd hold; kernels' own scratch does not appear.
struct DryRunReport {
  std::int64_t num_parameters = 0; ///< of the whole model
  std::vector<ShardInfo> shards;
  MemoryReport at_rest;       ///< before the first step
  MemoryReport after_forward; ///< of the last pass, before its backward
  MemoryReport after_step;    ///< peaks: of a step when the optimizer has state
  CommCounters step;          ///< of one step, presence of gradients included
  RuntimeCounters runtime;    ///< of one step
};

/// Local; no other rank exists. It counts in this process's account of memory
/// (memory_report()), so that nothing else may run beside it. Throws
/// ConfigError as `fsdp train` does for settings that make no run, and for a
/// rank outside of the world.
DryRunReport dry_run(const DryRunOptions& options);

} // namespace fsdp
