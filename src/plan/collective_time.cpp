#include "plan/collective_time.h"

#include <algorithm>
#include <cmath>

#include "fsdp/error.h"
#include "plan/constants.h"

namespace fsdp::plan {

namespace {

double check_rate(double rate, const Device& device, const char* link) {
  if (!(rate > 0)) {
    throw ConfigError(
        "device '" + device.name + "' has no bandwidth " + link +
        ", which the ranks of this job use: give it by a flag, or choose "
        "another device");
  }
  return rate;
}

struct Hops {
  double node = 0;
  double network = 0;
};

/// A ring passes every piece on n - 1 times, an all-reduce twice.
Hops ring_hops(Collective collective, const RankGroup& group) {
  const double rounds = collective == Collective::kAllReduce ? 2 : 1;
  const double steps = rounds * static_cast<double>(group.ranks - 1);
  const double between = rounds * static_cast<double>(group.nodes - 1);
  return {steps - between, between};
}

/// Up and down: a chain inside each node, a binary tree over the nodes.
Hops tree_hops(const RankGroup& group) {
  const double per_node =
      static_cast<double>(group.ranks) / static_cast<double>(group.nodes);
  return {2 * (per_node - 1), 2 * std::log2(static_cast<double>(group.nodes))};
}

CollectiveTime time_of(
    const Algorithm& algorithm,
    const Hops& hops,
    double sent_bytes,
    double bandwidth) {
  return {
      algorithm.base + hops.node * algorithm.node_hop +
          hops.network * algorithm.network_hop,
      sent_bytes / (bandwidth * algorithm.bandwidth_share),
      sent_bytes,
      algorithm.name};
}

} // namespace

RankGroup shard_group(const Job& job, const Cluster& cluster) {
  const std::int64_t ranks = shard_ranks(job, cluster);
  const std::int64_t per_node = cluster.devices_per_node;
  if (ranks <= per_node && per_node % ranks == 0) {
    return {ranks, 1};
  }
  const std::int64_t whole = (ranks - 1) / per_node + 1;
  return {ranks, std::min(cluster.nodes, std::max<std::int64_t>(2, whole))};
}

RankGroup replica_group(const Job& job, const Cluster& cluster) {
  const std::int64_t ranks = cluster.world_size() / shard_ranks(job, cluster);
  return {ranks, std::min(ranks, cluster.nodes)};
}

double ring_bandwidth(const RankGroup& group, const Device& device) {
  const std::int64_t per_node = group.ranks / group.nodes;
  double bandwidth = 0;
  if (per_node > 1) {
    bandwidth = kNodeLinkShare *
                check_rate(device.node_bandwidth, device, "inside a node");
  }
  if (group.nodes > 1) {
    // NCCL builds a ring for every network card of the group's ranks.
    const double network =
        static_cast<double>(per_node) * kNetworkShare *
        check_rate(device.network_bandwidth, device, "between nodes");
    bandwidth = per_node > 1 ? std::min(bandwidth, network) : network;
  }
  return bandwidth;
}

CollectiveTime collective_time(
    Collective collective,
    double bytes,
    const RankGroup& group,
    const Device& device,
    double bandwidth_factor) {
  if (group.ranks <= 1) {
    return {0, 0, 0, "none"};
  }
  const bool reduces_all = collective == Collective::kAllReduce;
  const auto ranks = static_cast<double>(group.ranks);
  const double sent = bytes * (reduces_all ? 2 : 1) * (ranks - 1) / ranks;
  const double bandwidth = ring_bandwidth(group, device) * bandwidth_factor;
  const CollectiveTime ring =
      time_of(kRing, ring_hops(collective, group), sent, bandwidth);
  if (!reduces_all) {
    return ring;
  }
  const CollectiveTime tree = time_of(kTree, tree_hops(group), sent, bandwidth);
  return tree.seconds() < ring.seconds() ? tree : ring;
}

CollectiveTime shared_memory_time(
    Collective collective,
    double bytes,
    const RankGroup& group,
    const Device& device) {
  if (group.ranks <= 1) {
    return {0, 0, 0, "none"};
  }
  const double rate =
      kMemoryShare * check_rate(device.memory_bandwidth, device, "to memory");
  const auto ranks = static_cast<double>(group.ranks);
  const double piece = bytes / ranks;
  const bool gathers = collective == Collective::kAllGather;
  return {0, (gathers ? piece : bytes) / rate, 0, "published copy"};
}

} // namespace fsdp::plan
