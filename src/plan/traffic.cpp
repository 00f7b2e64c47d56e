#include "plan/traffic.h"

#include <algorithm>
#include <utility>

#include "core/shard_math.h"
#include "plan/count.h"
#include "plan/unit_bytes.h"

namespace fsdp::plan {

namespace {

/// A set of ranks that a collective joins: every `stride`th of the world.
struct Group {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

class Builder {
 public:
  Builder(const ModelShape& model, const Job& job, const Cluster& cluster)
      : model_(model), job_(job), cluster_(cluster) {}

  TrafficEstimate build() {
    const std::int64_t world = cluster_.world_size();
    const std::int64_t shard = shard_ranks(job_, cluster_);
    shard_ = {.size = shard, .stride = 1};
    replicas_ = {.size = world / shard, .stride = shard};
    if (job_.transport == Transport::kCollectives) {
      add_gathers();
      add_reductions();
      add_replicas();
      add_presence();
    }
    return std::move(estimate_);
  }

 private:
  TrafficLine line_over(const Group& group) const {
    TrafficLine line;
    line.group_size = group.size;
    const std::int64_t per_node = cluster_.devices_per_node;
    line.between_nodes =
        cluster_.nodes > 1 && (group.stride > 1 || group.size > per_node ||
                               per_node % group.size != 0);
    line.ranks_per_node = group.stride >= per_node
                              ? 1
                              : std::min(group.size, per_node / group.stride);
    return line;
  }

  void keep(TrafficLine line, Count calls, Count tensor, Count sent) {
    if (line.group_size == 1 || calls.value() == 0) {
      return;
    }
    line.calls = calls.value();
    line.tensor_bytes = tensor.value();
    line.sent_bytes = sent.value();
    estimate_.lines.push_back(line);
  }

  template <typename Visit>
  void for_each_unit(Visit visit) const {
    const auto visit_unit = [&](const UnitShape& unit, bool is_root) {
      if (!unit.params.empty()) {
        visit(shards_of(unit, shard_.size), is_root);
      }
    };
    visit_unit(model_.root, true);
    for (const UnitShape& block : model_.blocks) {
      visit_unit(block, false);
    }
  }

  bool is_padded() const { return job_.runtime != Runtime::kLibfsdp; }

  std::int64_t reduced_passes() const {
    return job_.sync_every_pass ? job_.accumulation : 1;
  }

  /// Elements of one unit's calls in a step.
  struct Calls {
    Count number = 0;
    std::int64_t tensor = 0; ///< of one call
    Count sent = 0;          ///< the same
  };

  /// A line of the calls that `calls_of(unit, is_root)` tells for each unit.
  template <typename CallsOf>
  void add_units(
      const Group& group,
      Collective collective,
      Payload payload,
      DType dtype,
      CallsOf calls_of) {
    TrafficLine line = line_over(group);
    line.collective = collective;
    line.payload = payload;
    Count number = 0;
    Count tensor = 0;
    Count sent = 0;
    for_each_unit([&](const UnitShards& unit, bool is_root) {
      const Calls calls = calls_of(unit, is_root);
      const Count elements = calls.number * size_of(dtype);
      number += calls.number;
      tensor += elements * calls.tensor;
      sent += elements * calls.sent;
    });
    keep(line, number, tensor, sent);
  }

  std::int64_t whole_of(const UnitShards& unit) const {
    return is_padded() ? unit.padded : unit.numel;
  }

  // The root stays gathered from the forward to the end of the backward.
  void add_gathers() {
    add_units(
        shard_,
        Collective::kAllGather,
        Payload::kParameters,
        job_.precision.compute,
        [&](const UnitShards& unit, bool is_root) -> Calls {
          const bool once = is_root || keeps_gathered(job_.strategy);
          return {
              Count(once ? 1 : 2) * job_.accumulation,
              whole_of(unit),
              Count(unit.own) * (shard_.size - 1)};
        });
  }

  void add_reductions() {
    add_units(
        shard_,
        Collective::kReduceScatter,
        Payload::kGradients,
        gradient_wire(job_),
        [&](const UnitShards& unit, bool) -> Calls {
          const std::int64_t whole = whole_of(unit);
          return {reduced_passes(), whole, whole - unit.own};
        });
  }

  void add_replicas() {
    const int replicas = static_cast<int>(replicas_.size);
    add_units(
        replicas_,
        Collective::kAllReduce,
        Payload::kGradients,
        job_.precision.reduce,
        [&](const UnitShards& unit, bool) -> Calls {
          const std::int64_t own = rows_per_rank(unit.own, replicas);
          return {
              reduced_passes(),
              unit.own,
              Count(unit.own - own) + Count(own) * (replicas - 1)};
        });
  }

  // libfsdp gives a parameter that no rank used no gradient, as FSDP2 does not.
  // Every backward settles it; one that keeps its gradients has nothing to say.
  void add_presence() {
    if (job_.runtime != Runtime::kLibfsdp ||
        job_.strategy == Strategy::kNoShard) {
      return;
    }
    TrafficLine line = line_over(shard_);
    line.collective = Collective::kAllGather;
    line.payload = Payload::kPresence;
    const Count own =
        Count(reduced_passes()) * shards_of(model_, shard_.size).num_tensors;
    keep(line, job_.accumulation, own * shard_.size, own * (shard_.size - 1));
  }

  const ModelShape& model_;
  const Job& job_;
  const Cluster& cluster_;
  Group shard_;
  Group replicas_;
  TrafficEstimate estimate_;
};

} // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
  }
  return "unknown";
}

std::string_view name_of(Payload payload) {
  switch (payload) {
    case Payload::kParameters:
      return "parameters";
    case Payload::kGradients:
      return "gradients";
    case Payload::kPresence:
      return "presence";
  }
  return "unknown";
}

std::int64_t TrafficEstimate::sent_bytes() const {
  Count sum = 0;
  for (const TrafficLine& line : lines) {
    sum += line.sent_bytes;
  }
  return sum.value();
}

std::int64_t TrafficEstimate::sent_between_nodes() const {
  Count sum = 0;
  for (const TrafficLine& line : lines) {
    if (line.between_nodes) {
      sum += line.sent_bytes / line.ranks_per_node;
    }
  }
  return sum.value();
}

// src/runtime/param_group.cpp, reduction_types
DType gradient_wire(const Job& job) {
  const Precision& precision = job.precision;
  const bool kept_first = !job.sync_every_pass && job.accumulation > 1;
  const bool sum_can_widen = precision.reduce == precision.compute ||
                             precision.reduce == DType::kFloat32;
  return job.runtime != Runtime::kLibfsdp || kept_first || !sum_can_widen
             ? precision.reduce
             : precision.compute;
}

TrafficEstimate estimate_traffic(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  check(job, cluster);
  return Builder(model, job, cluster).build();
}

} // namespace fsdp::plan
