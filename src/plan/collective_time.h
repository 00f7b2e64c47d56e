#pragma once
// Seconds of one collective, as NCCL's own cost model has them: latency by hops
// plus bytes over bandwidth, of a ring, or of a tree where that is faster.

#include <cstdint>
#include <string_view>

#include "plan/device.h"
#include "plan/job.h"
#include "plan/traffic.h"

namespace fsdp::plan {

/// The ranks that meet: as many on each of `nodes` hosts.
struct RankGroup {
  std::int64_t ranks = 1;
  std::int64_t nodes = 1;
};

/// Neighbours share a copy: ranks r, r + 1, ... of one shard group lie on as
/// few nodes as they can.
RankGroup shard_group(const Job& job, const Cluster& cluster);

/// The ranks that hold the same shard, shard_ranks apart.
RankGroup replica_group(const Job& job, const Cluster& cluster);

struct CollectiveTime {
  double latency = 0;         ///< what no bandwidth removes
  double transfer = 0;        ///< sent over bandwidth
  double sent = 0;            ///< bytes of a rank
  std::string_view algorithm; ///< "ring", "tree", "none" for one rank

  double seconds() const { return latency + transfer; }
};

/// `bytes` are those of the whole tensor: the output of an all-gather, the
/// input of the others. `bandwidth_factor` scales every link. Throws
/// ConfigError if the group spans nodes (or devices) and the device has no
/// figure for that link.
CollectiveTime collective_time(
    Collective collective,
    double bytes,
    const RankGroup& group,
    const Device& device,
    double bandwidth_factor = 1);

/// Bytes/s at which a ring passes a tensor on ("busbw" of nccl-tests).
double ring_bandwidth(const RankGroup& group, const Device& device);

/// The same over libfsdp's published copy: every rank writes its piece once,
/// and reads all pieces of its rows to reduce them.
CollectiveTime shared_memory_time(
    Collective collective,
    double bytes,
    const RankGroup& group,
    const Device& device);

} // namespace fsdp::plan
