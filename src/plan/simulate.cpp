#include "plan/simulate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace fsdp::plan {

namespace {

/// A collective on its stream.
struct Interval {
  double start = 0;
  double end = 0;
  double rate = 1; ///< of the compute beside it
};

struct PassTotals {
  double seconds = 0;
  double compute = 0;
  double busy = 0; ///< compute with what contention adds
  double communication = 0;
};

/// One pass from time 0 on.
class Pass {
 public:
  Pass(const Schedule& schedule, bool reduces, std::vector<Event>* events)
      : schedule_(schedule), reduces_(reduces), events_(events) {}

  PassTotals run() {
    forward();
    backward();
    totals_.seconds = std::max(compute_free_, link_free_);
    return totals_;
  }

 private:
  /// A unit's turn in one direction.
  struct Stage {
    const ScheduledUnit* unit = nullptr;
    double recompute = 0;
    double seconds = 0;
    Transfer unshard;
    bool is_reduced = false;
  };

  void forward() {
    root_ready_ = communicate(
        Category::kUnshard,
        "all_gather",
        schedule_.root,
        schedule_.root.unshard);
    std::vector<Stage> stages;
    stages.reserve(schedule_.blocks.size() + 2);
    stages.push_back(
        {&schedule_.root, 0, schedule_.embedding.forward, {}, false});
    for (const ScheduledUnit& block : schedule_.blocks) {
      stages.push_back(
          {&block, 0, block.compute.forward, block.unshard, false});
    }
    stages.push_back({&schedule_.root, 0, schedule_.head.forward, {}, false});
    run_stages(stages, "forward");
  }

  void backward() {
    std::vector<Stage> stages;
    stages.reserve(schedule_.blocks.size() + 2);
    stages.push_back(
        {&schedule_.root,
         schedule_.head.recompute,
         schedule_.head.backward,
         {},
         false});
    const bool regathers = schedule_.reshard_after_forward;
    for (auto block = schedule_.blocks.rbegin();
         block != schedule_.blocks.rend();
         ++block) {
      stages.push_back(
          {&*block,
           block->compute.recompute,
           block->compute.backward,
           regathers ? block->unshard : Transfer{},
           true});
    }
    stages.push_back(
        {&schedule_.root,
         schedule_.embedding.recompute,
         schedule_.embedding.backward,
         {},
         true});
    run_stages(stages, "backward");
  }

  void run_stages(const std::vector<Stage>& stages, const char* name) {
    const auto depth = static_cast<std::size_t>(
        std::max<std::int64_t>(0, schedule_.prefetch_depth));
    gathered_.assign(stages.size(), 0);
    gathered_.front() = root_ready_;
    for (std::size_t i = 0; i <= depth && i < stages.size(); ++i) {
      gather(stages, i);
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Stage& stage = stages[i];
      compute_free_ = std::max(compute_free_, gathered_[i]);
      compute("recompute", *stage.unit, stage.recompute);
      compute(name, *stage.unit, stage.seconds);
      if (stage.is_reduced && reduces_) {
        reduce(*stage.unit);
      }
      if (depth < stages.size() && i + 1 + depth < stages.size()) {
        gather(stages, i + 1 + depth);
      }
    }
  }

  void gather(const std::vector<Stage>& stages, std::size_t i) {
    if (stages[i].unshard.seconds > 0) {
      gathered_[i] = communicate(
          Category::kUnshard, "all_gather", *stages[i].unit, stages[i].unshard);
    }
  }

  void reduce(const ScheduledUnit& unit) {
    communicate(Category::kReduce, "reduce_scatter", unit, unit.reduce);
    communicate(Category::kReduce, "all_reduce", unit, unit.replicate);
  }

  /// Issued now; returns when it ends.
  double communicate(
      Category category,
      const char* name,
      const ScheduledUnit& unit,
      const Transfer& transfer) {
    if (transfer.seconds <= 0) {
      return compute_free_;
    }
    const double start = std::max(link_free_, compute_free_);
    link_free_ = start + transfer.seconds;
    totals_.communication += transfer.seconds;
    in_flight_.push_back({start, link_free_, 1 - transfer.contention});
    record(category, name, unit, start, link_free_);
    return link_free_;
  }

  void compute(const char* name, const ScheduledUnit& unit, double seconds) {
    if (seconds <= 0) {
      return;
    }
    const double start = compute_free_;
    compute_free_ = end_of(start, seconds);
    totals_.compute += seconds;
    totals_.busy += compute_free_ - start;
    record(Category::kCompute, name, unit, start, compute_free_);
  }

  /// Every collective that can run meanwhile has been issued before.
  double end_of(double at, double work) {
    for (; first_in_flight_ < in_flight_.size(); ++first_in_flight_) {
      const Interval& link = in_flight_[first_in_flight_];
      if (link.end <= at) {
        continue;
      }
      const double before = std::max(0.0, link.start - at);
      if (work <= before) {
        break;
      }
      work -= before;
      at += before;
      const double done = (link.end - at) * link.rate;
      if (work <= done) {
        return at + work / link.rate;
      }
      work -= done;
      at = link.end;
    }
    return at + work;
  }

  void record(
      Category category,
      const char* name,
      const ScheduledUnit& unit,
      double start,
      double end) {
    if (events_ != nullptr) {
      events_->push_back({category, name, unit.name, start, end});
    }
  }

  const Schedule& schedule_;
  bool reduces_;
  std::vector<Event>* events_;
  PassTotals totals_;
  double compute_free_ = 0;
  double link_free_ = 0;
  double root_ready_ = 0;
  std::vector<double> gathered_; ///< by stage: when its unit is whole
  std::vector<Interval> in_flight_;
  std::size_t first_in_flight_ = 0;
};

void add_times(
    std::vector<UnitExposure>& sum,
    const std::vector<UnitExposure>& units,
    double times) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    places.emplace(sum[i].unit, i);
  }
  std::vector<UnitExposure> more; // passes of another kind may have others
  for (const UnitExposure& unit : units) {
    const auto place = places.find(unit.unit);
    UnitExposure& known = place == places.end()
                              ? more.emplace_back(UnitExposure{unit.unit})
                              : sum[place->second];
    known.unshard += times * unit.unshard;
    known.reduce += times * unit.reduce;
  }
  std::ranges::move(more, std::back_inserter(sum));
}

/// Adds up passes of one kind.
class Steps {
 public:
  explicit Steps(bool with_events) : with_events_(with_events) {}

  void add(const Schedule& schedule, bool reduces, std::int64_t times) {
    if (times <= 0) {
      return;
    }
    std::vector<Event> events;
    const PassTotals pass =
        Pass(schedule, reduces, with_events_ ? &events : nullptr).run();
    const auto count = static_cast<double>(times);
    step_.seconds += count * pass.seconds;
    step_.compute += count * pass.compute;
    step_.communication += count * pass.communication;
    step_.contention += count * (pass.busy - pass.compute);
    // Something runs at every moment of a pass.
    step_.exposed += count * std::max(0.0, pass.seconds - pass.busy);
    if (with_events_) {
      add_times(step_.units, exposure_by_unit(events, 0), count);
      trace(events, pass.seconds, std::min(times, room_));
      step_.passes_left_out += times - std::min(times, room_);
      room_ -= std::min(times, room_);
    }
  }

  void add_optimizer(double seconds) {
    step_.seconds += seconds;
    step_.compute += seconds;
    step_.optimizer += seconds;
    if (with_events_ && seconds > 0) {
      step_.events.push_back(
          {Category::kOptimizer, "step", "root", traced_, traced_ + seconds});
    }
  }

  void leave_room(std::int64_t passes) { room_ = passes; }

  SimulatedStep take() { return std::move(step_); }

 private:
  void trace(
      const std::vector<Event>& events, double seconds, std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) {
      for (Event event : events) {
        event.start += traced_;
        event.end += traced_;
        step_.events.push_back(std::move(event));
      }
      traced_ += seconds;
    }
  }

  bool with_events_;
  std::int64_t room_ = 0; ///< passes whose events are still taken
  double traced_ = 0;     ///< seconds that the events cover
  SimulatedStep step_;
};

} // namespace

SimulatedStep simulate(const Schedule& schedule, bool with_events) {
  Steps steps(with_events);
  // A pass ends with both streams at rest, so that equal passes take equally
  // long.
  const std::int64_t last = schedule.sync_every_pass ? schedule.passes : 1;
  steps.leave_room(
      schedule.sync_every_pass ? kTracedPasses : kTracedPasses - 1);
  steps.add(schedule, false, schedule.passes - last);
  steps.leave_room(schedule.sync_every_pass ? kTracedPasses : 1);
  steps.add(schedule, true, last);
  steps.add_optimizer(schedule.optimizer);
  return steps.take();
}

Throughput throughput_of(
    const SimulatedStep& step,
    const ComputeTimes& compute,
    const Job& job,
    const Cluster& cluster) {
  const auto passes = static_cast<double>(job.accumulation);
  const auto ranks = static_cast<double>(cluster.world_size());
  const double tokens = passes * static_cast<double>(job.micro_batch) *
                        static_cast<double>(job.seq_len) * ranks;
  const double attainable =
      step.seconds * cluster.device.peak(job.precision.compute);
  Throughput result;
  result.tokens_per_second = tokens / step.seconds;
  result.mfu = passes * compute.model_flops / attainable;
  result.hfu =
      passes * (compute.model_flops + compute.recompute_flops) / attainable;
  return result;
}

StepEstimate estimate_step(
    const ModelShape& model,
    const Job& job,
    const Cluster& cluster,
    const Conditions& conditions,
    bool with_events) {
  const ComputeTimes compute = compute_times(model, job, cluster);
  StepEstimate estimate;
  estimate.step = simulate(
      make_schedule(model, job, cluster, compute, conditions), with_events);
  estimate.throughput = throughput_of(estimate.step, compute, job, cluster);
  return estimate;
}

} // namespace fsdp::plan
