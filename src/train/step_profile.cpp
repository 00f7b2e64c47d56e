#include "train/step_profile.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "fsdp/error.h"
#include "plan/chrome_trace.h"

namespace fsdp {
namespace {

bool is_compute(UnitPhase phase) {
  return phase == UnitPhase::kForward || phase == UnitPhase::kBackward;
}

std::string shown(const std::string& unit) {
  return unit.empty() ? "root" : unit;
}

} // namespace

double StepProfile::seconds(Clock::time_point now) const {
  return std::chrono::duration<double>(now - *origin_).count();
}

void StepProfile::add(
    plan::Category category,
    std::string name,
    const std::string& unit,
    Clock::time_point begin,
    Clock::time_point end) {
  if (is_recording_ && begin < end) {
    events_.push_back(
        {.category = category,
         .name = std::move(name),
         .unit = shown(unit),
         .start = seconds(begin),
         .end = seconds(end),
         .rank = rank_});
  }
}

void StepProfile::begin_step(std::int64_t step, Clock::time_point now) {
  is_recording_ = step >= kFirst && step <= kLast;
  if (is_recording_ && !origin_) {
    origin_ = now;
  }
  computing_.clear();
  talking_.clear();
  gathers_.clear();
}

void StepProfile::end_step(Clock::time_point optimizer, Clock::time_point now) {
  add(plan::Category::kOptimizer, "optimizer", "", optimizer, now);
  is_recording_ = false;
}

/// Ends the event of the innermost unit that computes; it goes on from `now`.
void StepProfile::pause_compute(Clock::time_point now) {
  if (!computing_.empty() && talking_.empty()) {
    const Open& open = computing_.back();
    add(plan::Category::kCompute,
        open.phase == UnitPhase::kForward ? "forward" : "backward",
        open.unit,
        compute_since_,
        now);
  }
  compute_since_ = now;
}

void StepProfile::on_phase(
    UnitPhase phase,
    bool begins,
    const std::string& unit,
    Clock::time_point now) {
  if (!is_recording_) {
    return;
  }
  if (phase == UnitPhase::kUnshard) {
    begins ? gathers_.push_back({phase, unit, now}) : close(phase, unit, now);
    return;
  }
  pause_compute(now);
  if (!begins) {
    close(phase, unit, now);
  } else if (is_compute(phase)) {
    computing_.push_back({phase, unit, now});
  } else {
    talking_.push_back({phase, unit, now});
  }
}

void StepProfile::close(
    UnitPhase phase, const std::string& unit, Clock::time_point now) {
  auto& open = is_compute(phase)              ? computing_
               : phase == UnitPhase::kUnshard ? gathers_
                                              : talking_;
  const auto found =
      std::find_if(open.rbegin(), open.rend(), [&](const Open& candidate) {
        return candidate.phase == phase && candidate.unit == unit;
      });
  if (found == open.rend()) {
    return; // it began before the step
  }
  if (phase == UnitPhase::kUnshard) {
    add(plan::Category::kUnshard, "all_gather", unit, found->begin, now);
  } else if (phase == UnitPhase::kPublish) {
    add(plan::Category::kUnshard, "publish", unit, found->begin, now);
  } else if (phase == UnitPhase::kReduce) {
    add(plan::Category::kReduce, "reduce_scatter", unit, found->begin, now);
  }
  open.erase(std::next(found).base());
}

std::vector<plan::Event> StepProfile::events() const {
  std::vector<plan::Event> sorted = events_;
  std::ranges::stable_sort(sorted, {}, &plan::Event::start);
  return sorted;
}

void begin_profile(const std::string& path) {
  if (!std::ofstream(path)) {
    throw ConfigError(
        "--profile '" + path + "': cannot be written: " + std::strerror(errno));
  }
}

void write_profile(const std::string& path, const StepProfile& profile) {
  std::ofstream file(path);
  plan::write_trace(file, profile.events());
  file.close();
  if (!file) {
    throw DataError(
        "--profile '" + path + "': cannot be written: " + std::strerror(errno));
  }
}

} // namespace fsdp
