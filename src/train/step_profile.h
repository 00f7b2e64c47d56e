#pragma once
// --profile: where the time of a few steps goes, unit by unit, as a timeline.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/unit_phases.h"
#include "plan/timeline.h"

namespace fsdp {

/// Turns the phases of one rank into events: of compute, while the rank's
/// thread computes and for the innermost unit that does; of communication, from
/// a gather's begin to its end, and while the thread itself publishes, hands
/// over or sums.
class StepProfile {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepProfile(int rank) : rank_(rank) {}

  /// Steps from 1. Only steps kFirst to kLast are kept: the first ones also
  /// make what is kept for later.
  static constexpr std::int64_t kFirst = 3;
  static constexpr std::int64_t kLast = 12;

  void begin_step(std::int64_t step, Clock::time_point now);
  /// The optimizer's step and what follows it began at `optimizer`.
  void end_step(Clock::time_point optimizer, Clock::time_point now);
  void on_phase(
      UnitPhase phase,
      bool begins,
      const std::string& unit,
      Clock::time_point now);

  /// In order of their start; seconds since the first kept step began.
  std::vector<plan::Event> events() const;

 private:
  struct Open {
    UnitPhase phase;
    std::string unit;
    Clock::time_point begin;
  };

  double seconds(Clock::time_point now) const;
  void add(
      plan::Category category,
      std::string name,
      const std::string& unit,
      Clock::time_point begin,
      Clock::time_point end);
  void pause_compute(Clock::time_point now);
  void close(UnitPhase phase, const std::string& unit, Clock::time_point now);

  const int rank_;
  bool is_recording_ = false;
  std::optional<Clock::time_point> origin_;
  std::vector<Open> computing_; ///< the last one is at work
  std::vector<Open> talking_;   ///< the thread is inside the runtime
  std::vector<Open> gathers_;
  Clock::time_point compute_since_;
  std::vector<plan::Event> events_;
};

/// Empties or makes the file. Throws ConfigError naming it if it cannot.
void begin_profile(const std::string& path);

/// Writes the events to `path`, in Chrome's trace format. Throws DataError,
/// naming it, if it cannot be written.
void write_profile(const std::string& path, const StepProfile& profile);

} // namespace fsdp
