#pragma once
// The pictures of the project's source documents, from their own calculators.

#include <vector>

#include "report/chart.h"

namespace fsdp::report {

/// Memory by strategy and number of GPUs, communication volume, one against the
/// other, and which strategy is recommended for which model and cluster.
std::vector<Chart> seed_charts();

} // namespace fsdp::report
