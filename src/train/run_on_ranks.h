#pragma once
// The ranks of a training run at work together.

#include <functional>

namespace fsdp {

class ProcessGroup;

/// Runs `body`. An error of LibTorch, whose text has a backtrace of many lines
/// below it, leaves as Error with one line.
void with_one_line_errors(const std::function<void()>& body);

/// run_together() with such errors, which the other ranks then hear of too.
void run_on_ranks(const ProcessGroup& group, const std::function<void()>& body);

} // namespace fsdp
