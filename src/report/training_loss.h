#pragma once
// The loss over a training run, from the log that `fsdp train --log-json`
// writes.

#include <filesystem>

#include "report/chart.h"

namespace fsdp::report {

inline constexpr std::size_t kMostLossPoints = 2000;

/// One JSON object a line, with "step" and "loss" (null where it was not
/// finite). Of a long run every n-th step is shown. Throws DataError, naming
/// file and line, for a file that is no such log.
Chart training_loss(const std::filesystem::path& log);

} // namespace fsdp::report
