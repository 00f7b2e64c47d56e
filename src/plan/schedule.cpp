#include "plan/schedule.h"

#include <algorithm>
#include <cmath>

#include "fsdp/error.h"
#include "plan/collective_time.h"
#include "plan/constants.h"
#include "plan/traffic.h"

namespace fsdp::plan {

namespace {

void check_factor(const char* name, double factor, double least) {
  if (!std::isfinite(factor) || factor <= 0 || factor < least) {
    std::string got = std::to_string(factor);
    throw ConfigError(
        std::string(name) + " is " + got + "; expected a finite number " +
        (least > 0 ? "of at least 1" : "above 0"));
  }
}

void check(const Conditions& conditions) {
  check_factor("the factor of slow links", conditions.link_factor, 0);
  check_factor("the factor of a straggler", conditions.straggler_factor, 1);
  if (conditions.bucket_bytes < 0) {
    throw ConfigError(
        "the bucket is " + std::to_string(conditions.bucket_bytes) +
        " bytes; expected 0 or more");
  }
}

/// Seconds of a unit's collectives by its number of parameters.
class UnitCollectives {
 public:
  UnitCollectives(
      const Job& job, const Cluster& cluster, const Conditions& conditions)
      : job_(job),
        device_(cluster.device),
        factor_(conditions.link_factor),
        shards_(shard_group(job, cluster)),
        replicas_(replica_group(job, cluster)) {}

  void fill(ScheduledUnit& unit, double numel) const {
    const Precision& precision = job_.precision;
    const double reduced = numel * size(precision.reduce);
    unit.unshard = transfer(
        Collective::kAllGather, numel * size(precision.compute), shards_);
    unit.reduce = transfer(
        Collective::kReduceScatter, numel * size(gradient_wire(job_)), shards_);
    unit.unshard.seconds += host_copy(numel);
    unit.reduce.seconds += host_copy(numel);
    unit.replicate = transfer(
        Collective::kAllReduce,
        reduced / static_cast<double>(shards_.ranks),
        replicas_);
  }

 private:
  static double size(DType dtype) {
    return static_cast<double>(size_of(dtype));
  }

  Transfer transfer(
      Collective collective, double bytes, const RankGroup& group) const {
    const bool shared = job_.transport == Transport::kSharedMemory;
    const CollectiveTime time =
        shared ? shared_memory_time(collective, bytes, group, device_)
               : collective_time(collective, bytes, group, device_, factor_);
    // The bytes that it moves through memory compete with the compute's.
    if (time.sent <= 0 || !(device_.memory_bandwidth > 0)) {
      return {time.seconds(), 0};
    }
    const double share = kContentionBytes * time.sent / time.seconds() /
                         device_.memory_bandwidth;
    return {
        time.seconds(),
        std::min(double{kMostContention}, kContentionProcessors + share)};
  }

  /// Of the rank's shard, to the device before a gather, back after a
  /// reduction.
  double host_copy(double numel) const {
    if (!job_.cpu_offload) {
      return 0;
    }
    if (!(device_.host_bandwidth > 0)) {
      throw ConfigError(
          "device '" + device_.name +
          "' has no bandwidth to the host, which offload uses: give it by a "
          "flag, or keep the states on the device");
    }
    return numel / static_cast<double>(shards_.ranks) *
           size(job_.precision.master) / (device_.host_bandwidth * kHostShare);
  }

  const Job& job_;
  const Device& device_;
  double factor_;
  RankGroup shards_;
  RankGroup replicas_;
};

void add(UnitTime& sum, const UnitTime& time, double factor) {
  sum.forward += time.forward * factor;
  sum.recompute += time.recompute * factor;
  sum.backward += time.backward * factor;
}

std::string merged_name(
    const ModelShape& model, std::size_t first, std::size_t last) {
  return first == last
             ? model.blocks[first].name
             : model.blocks[first].name + " to " + model.blocks[last].name;
}

} // namespace

Schedule make_schedule(
    const ModelShape& model,
    const Job& job,
    const Cluster& cluster,
    const ComputeTimes& compute,
    const Conditions& conditions) {
  check(conditions);
  const UnitCollectives collectives(job, cluster, conditions);
  const double slow = conditions.straggler_factor;
  Schedule schedule;
  schedule.root.name = model.root.name;
  collectives.fill(schedule.root, static_cast<double>(model.root.numel()));
  add(schedule.embedding, compute.embedding, slow);
  add(schedule.head, compute.head, slow);
  schedule.optimizer = compute.optimizer * slow;
  schedule.reshard_after_forward =
      job.strategy != Strategy::kNoShard && !keeps_gathered(job.strategy);
  schedule.prefetch_depth = job.prefetch_depth;
  schedule.passes = job.accumulation;
  schedule.sync_every_pass = job.sync_every_pass;

  const double bucket = static_cast<double>(conditions.bucket_bytes) /
                        static_cast<double>(size_of(job.precision.compute));
  const std::size_t count = model.blocks.size();
  double numel = 0;
  ScheduledUnit unit;
  std::size_t first = 0;
  for (std::size_t i = 0; i < count; ++i) {
    numel += static_cast<double>(model.blocks[i].numel());
    add(unit.compute, compute.blocks[i], slow);
    if (numel >= bucket || i + 1 == count) {
      unit.name = merged_name(model, first, i);
      collectives.fill(unit, numel);
      schedule.blocks.push_back(std::move(unit));
      unit = {};
      numel = 0;
      first = i + 1;
    }
  }
  return schedule;
}

} // namespace fsdp::plan
