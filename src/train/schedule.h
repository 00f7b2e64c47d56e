#pragma once
// How far a run has come, and the learning rate there.

#include <cstdint>

#include "train/config.h"

namespace fsdp {

/// Share of the run that is over, in [0, 1]: that of the limit (steps or
/// minutes) that will be reached first. `seconds` of training.
double progress(
    const TrainOptions& options, std::int64_t steps_done, double seconds);

/// For the step after `steps_done` steps: a line from 0 over the warmup, then a
/// cosine from lr to min_lr over what the warmup left of the run.
double learning_rate(
    const TrainOptions& options,
    std::int64_t steps_done,
    double progress_now,
    double progress_after_warmup);

} // namespace fsdp
