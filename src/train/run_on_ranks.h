#pragma once
// The ranks of a training run at work together.

#include <functional>

namespace fsdp {

class ProcessGroup;

/// run_together() for code that calls LibTorch, whose errors carry a backtrace
/// over many lines: they leave here, and reach the other ranks, as Error with
/// one line.
void run_on_ranks(const ProcessGroup& group, const std::function<void()>& body);

} // namespace fsdp
