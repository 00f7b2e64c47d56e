#pragma once
// Timelines as Chrome's trace format (chrome://tracing, ui.perfetto.dev): one
// process for a rank, one thread for a stream, complete events ("X") with the
// category's name as "cat" and the unit as args.unit.

#include <filesystem>
#include <iosfwd>
#include <span>
#include <vector>

#include "plan/timeline.h"

namespace fsdp::plan {

/// Microseconds, to a nanosecond.
void write_trace(std::ostream& out, std::span<const Event> events);

/// Events of the four categories, in order of their start; what else the file
/// holds is passed over. Throws DataError, naming file and event, for a file
/// that cannot be read, is no trace, holds none of these events, or an
/// ill-formed one of them.
std::vector<Event> read_trace(const std::filesystem::path& path);

} // namespace fsdp::plan
