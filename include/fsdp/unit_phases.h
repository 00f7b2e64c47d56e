#pragma once
// Where a step's time goes, unit by unit: for timelines.

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/export.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// What a rank does for a unit. Its thread computes in kForward and kBackward,
/// except while one of kPublish, kWaitUnshard and kReduce is open.
enum class UnitPhase : std::uint8_t {
  kForward,     ///< phases of units inside it nest
  kBackward,    ///< may end after the next unit's has begun
  kPublish,     ///< shows the shards to the ranks of the host (root's name)
  kUnshard,     ///< a gather over messages: from its begin until the parameters
                ///< show all rows
  kWaitUnshard, ///< begins a gather, or waits for it
  kReduce,      ///< hands gradients over, sums them, or waits for them
};

/// `begins`: the phase begins, else it ends. `unit`: qualified name, "" is the
/// root. After an exception phases may stay open.
using UnitPhaseObserver =
    std::function<void(UnitPhase phase, bool begins, const std::string& unit)>;

/// `observer` is called at each phase of the units below `module`'s root, on
/// the rank's own thread or the one that runs its backward, and must not throw.
/// Pass nullptr to end it. Throws UsageError where no unit is below `module`.
FSDP_API void set_unit_phase_observer(
    torch::nn::Module& module, UnitPhaseObserver observer);

} // namespace fsdp
