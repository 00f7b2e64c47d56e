#pragma once
// What every rank's memory went to.

#include <vector>

#include "fsdp/memory.h"

namespace fsdp {

class ProcessGroup;

/// [collective over `group`] The memory_report() of each rank, by rank.
std::vector<MemoryReport> gather_memory_reports(const ProcessGroup& group);

} // namespace fsdp
