#include "cli/plan_report.h"

#include <utility>

namespace fsdp::cli {

namespace {

using plan::Strategy;

Alternative work_out(const PlanRequest& request, const plan::Job& job) {
  return {
      .job = job,
      .memory = estimate_memory(request.model, job, request.cluster),
      .traffic = estimate_traffic(request.model, job, request.cluster)};
}

/// A node, and whole nodes by twos, as far as there are replicas of it.
std::vector<std::int64_t> hybrid_sizes(const plan::Cluster& cluster) {
  constexpr std::size_t kMostShapes = 3;
  std::vector<std::int64_t> sizes;
  for (std::int64_t nodes = 1;
       nodes < cluster.nodes && sizes.size() < kMostShapes;
       nodes *= 2) {
    if (cluster.nodes % nodes == 0) {
      sizes.push_back(nodes * cluster.devices_per_node);
    }
  }
  return sizes;
}

std::vector<plan::Job> ways_to_shard(const PlanRequest& request) {
  std::vector<plan::Job> jobs;
  const auto add = [&](Strategy strategy, std::int64_t shard_size) {
    plan::Job job = request.job;
    job.strategy = strategy;
    job.shard_size = shard_size;
    jobs.push_back(job);
  };
  const bool shared = request.job.transport == plan::Transport::kSharedMemory;
  if (!shared) {
    add(Strategy::kNoShard, 0);
  }
  add(Strategy::kShardGradOp, 0);
  add(Strategy::kFullShard, 0);
  if (!shared) {
    for (const std::int64_t size : hybrid_sizes(request.cluster)) {
      add(Strategy::kHybridShard, size);
      add(Strategy::kHybridShardZero2, size);
    }
  }
  return jobs;
}

} // namespace

PlanReport make_report(PlanRequest request) {
  PlanReport report;
  report.chosen = work_out(request, request.job);
  for (const plan::Job& job : ways_to_shard(request)) {
    report.alternatives.push_back(work_out(request, job));
  }
  report.request = std::move(request);
  return report;
}

std::optional<std::int64_t> spare_bytes(
    const PlanRequest& request, const plan::MemoryEstimate& memory) {
  const double has = request.cluster.device.memory_bytes;
  if (has <= 0) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(has) - memory.total();
}

} // namespace fsdp::cli
