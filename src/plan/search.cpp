#include "plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "plan/compute_time.h"
#include "plan/schedule.h"

namespace fsdp::plan {

namespace {

constexpr std::int64_t kMostSequences = 1'000'000'000'000;
constexpr int kDeepestPrefetch = 4;
/// What is not faster by this share is equally fast.
constexpr double kWorthwhile = 0.001;

constexpr std::array kCheckpointings{
    Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull};

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t i = 1; i <= number / i; ++i) {
    if (number % i == 0) {
      low.push_back(i);
      if (i != number / i) {
        high.push_back(number / i);
      }
    }
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

struct Mesh {
  Strategy strategy = Strategy::kFullShard;
  std::int64_t shard_size = 1;
};

/// Shard groups lie within a node or take whole nodes.
std::vector<Mesh> meshes(const SearchRequest& request) {
  const std::int64_t world = request.cluster.world_size();
  const std::int64_t per_node = request.cluster.devices_per_node;
  const bool shared = request.base.transport == Transport::kSharedMemory;
  std::vector<Mesh> all;
  if (!shared) {
    all.push_back({Strategy::kNoShard, 1});
  }
  if (world == 1) {
    return all.empty() ? std::vector<Mesh>{{Strategy::kFullShard, 1}} : all;
  }
  all.push_back({Strategy::kShardGradOp, world});
  all.push_back({Strategy::kFullShard, world});
  if (shared) {
    return all;
  }
  for (const std::int64_t size : divisors(world)) {
    const bool is_even = per_node % size == 0 || size % per_node == 0;
    if (size > 1 && size < world && is_even) {
      all.push_back({Strategy::kHybridShard, size});
      all.push_back({Strategy::kHybridShardZero2, size});
    }
  }
  return all;
}

double excess(const PlannedJob& plan, const Cluster& cluster) {
  return static_cast<double>(plan.memory.total()) -
         usable_bytes(cluster.device);
}

/// Searches one mesh and checkpointing.
class Family {
 public:
  using Times = std::map<std::int64_t, ComputeTimes>;

  Family(
      const SearchRequest& request,
      const MemoryModel& memory,
      Job base,
      Times& times)
      : request_(request),
        memory_(memory),
        base_(std::move(base)),
        times_(times) {}

  void search(const std::vector<std::int64_t>& micro_batches) {
    const std::int64_t per_rank = micro_batches.back();
    for (const std::int64_t micro_batch : micro_batches) {
      // A larger one takes more memory, but for the whole batch at once: no
      // earlier pass has left gradients then.
      if (micro_batch == per_rank || !try_passes(micro_batch, per_rank)) {
        break;
      }
    }
    try_passes(per_rank, per_rank);
  }

  std::int64_t considered() const {
    return static_cast<std::int64_t>(plans_.size());
  }

  /// Of those that are equally fast, the one with the least memory.
  PlannedJob best() const {
    double fastest = std::numeric_limits<double>::infinity();
    for (const PlannedJob& plan : plans_) {
      fastest = plan.fits ? std::min(fastest, plan.step.seconds) : fastest;
    }
    const auto is_candidate = [&](const PlannedJob& plan) {
      return plan.fits ? plan.step.seconds <= fastest * (1 + kWorthwhile)
                       : std::isinf(fastest);
    };
    const PlannedJob* best = nullptr;
    for (const PlannedJob& plan : plans_) {
      if (is_candidate(plan) &&
          (best == nullptr || plan.memory.total() < best->memory.total())) {
        best = &plan;
      }
    }
    return *best;
  }

 private:
  /// Whether any fits.
  bool try_passes(std::int64_t micro_batch, std::int64_t per_rank) {
    Job job = base_;
    job.micro_batch = micro_batch;
    job.accumulation = per_rank / micro_batch;
    bool any_fits = try_depths(job);
    if (job.accumulation > 1) {
      job.sync_every_pass = false;
      any_fits = try_depths(job) || any_fits;
    }
    return any_fits;
  }

  /// Whether the shallowest fits.
  bool try_depths(Job job) {
    const bool gathers = job.strategy != Strategy::kNoShard;
    std::optional<Schedule> schedule;
    for (int depth = 0; depth <= (gathers ? kDeepestPrefetch : 0); ++depth) {
      job.prefetch_depth = depth;
      PlannedJob plan;
      plan.job = job;
      plan.memory = memory_(request_.model, job, request_.cluster);
      plan.fits = excess(plan, request_.cluster) <= 0;
      if (plan.fits) {
        const ComputeTimes& compute = times_of(job);
        if (!schedule) {
          schedule =
              make_schedule(request_.model, job, request_.cluster, compute);
          schedule->optimizer =
              optimizer_time(request_.model, job, request_.cluster);
        }
        schedule->prefetch_depth = depth;
        plan.step = simulate(*schedule, false);
        plan.throughput =
            throughput_of(plan.step, compute, job, request_.cluster);
      }
      plans_.push_back(std::move(plan));
      if (!plans_.back().fits) {
        return depth > 0;
      }
    }
    return true;
  }

  const ComputeTimes& times_of(const Job& job) {
    const auto found = times_.find(job.micro_batch);
    return found != times_.end()
               ? found->second
               : times_
                     .emplace(
                         job.micro_batch,
                         compute_times(request_.model, job, request_.cluster))
                     .first->second;
  }

  const SearchRequest& request_;
  const MemoryModel& memory_;
  Job base_;
  Times& times_;
  std::vector<PlannedJob> plans_;
};

std::string rounded(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g %s", value, unit);
  return text;
}

std::string largest_component(const MemoryEstimate& memory) {
  static const std::map<std::string_view, std::string> kWords{
      {"optimizer", "optimizer state"},
      {"gathered", "gathered units"},
      {"reduction", "buffers of reductions"},
      {"full_gradients", "gradients that are not yet reduced"},
      {"working", "a block's backward"}};
  const auto parts = parts_of(memory);
  const char* name =
      std::ranges::max_element(parts, {}, &MemoryPart::bytes)->name;
  const auto words = kWords.find(name);
  return words == kWords.end() ? name : words->second;
}

std::string why_not(const PlannedJob& plan, const Cluster& cluster) {
  return "needs " + rounded(excess(plan, cluster) / 1e9, "GB") +
         " more than there is room for, most of it " +
         largest_component(plan.memory);
}

/// What of the lost time is most.
std::string why_slower(const PlannedJob& plan, const PlannedJob& best) {
  const double lost = plan.step.seconds - best.step.seconds;
  const std::array<std::pair<double, const char*>, 4> parts{{
      {plan.step.exposed - best.step.exposed, "more exposed communication"},
      {plan.step.optimizer - best.step.optimizer, "more in the optimizer"},
      {plan.step.compute - plan.step.optimizer - best.step.compute +
           best.step.optimizer,
       plan.job.checkpointing > best.job.checkpointing
           ? "more compute, done again by checkpointing"
           : "more compute, in smaller batches"},
      {plan.step.contention - best.step.contention,
       "more compute that collectives slow down"},
  }};
  const auto& most = *std::ranges::max_element(
      parts, [](const auto& a, const auto& b) { return a.first < b.first; });
  if (lost <= kWorthwhile * best.step.seconds) {
    return "as fast within 0.1 %";
  }
  return rounded(100 * lost / best.step.seconds, "% slower: ") +
         rounded(most.first * 1e3, "ms ") + most.second;
}

void check_request(const SearchRequest& request) {
  check(request.base, request.cluster);
  const std::int64_t world = request.cluster.world_size();
  if (request.global_batch < 1 || request.global_batch > kMostSequences ||
      request.global_batch % world != 0) {
    throw ConfigError(
        "a global batch of " + std::to_string(request.global_batch) +
        " sequences does not divide over " + std::to_string(world) +
        " ranks: choose a multiple of that, at most 1e12");
  }
  if (!(request.cluster.device.memory_bytes > 0)) {
    throw ConfigError(
        "device '" + request.cluster.device.name +
        "' has no size of its memory, which a search needs: give it by a "
        "flag, or choose another device");
  }
}

void rank_plans(std::vector<PlannedJob>& plans, const Cluster& cluster) {
  std::ranges::stable_sort(plans, [](const PlannedJob& a, const PlannedJob& b) {
    if (a.fits != b.fits) {
      return a.fits;
    }
    return a.fits ? a.step.seconds < b.step.seconds
                  : a.memory.total() < b.memory.total();
  });
  for (PlannedJob& plan : plans) {
    if (!plan.fits) {
      plan.why = why_not(plan, cluster);
    } else if (&plan != &plans.front()) {
      plan.why = why_slower(plan, plans.front());
    }
  }
}

} // namespace

SearchResult search(const SearchRequest& request, const MemoryModel& memory) {
  check_request(request);
  const auto micro_batches =
      divisors(request.global_batch / request.cluster.world_size());
  SearchResult result;
  for (const Checkpointing checkpointing : kCheckpointings) {
    Family::Times times; // by micro-batch; passes are alike for every mesh
    for (const Mesh& mesh : meshes(request)) {
      Job job = request.base;
      job.checkpointing = checkpointing;
      job.strategy = mesh.strategy;
      job.shard_size = mesh.shard_size;
      job.sync_every_pass = true;
      Family family(request, memory, job, times);
      family.search(micro_batches);
      result.considered += family.considered();
      result.plans.push_back(family.best());
    }
  }
  rank_plans(result.plans, request.cluster);
  return result;
}

} // namespace fsdp::plan
