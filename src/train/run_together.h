#pragma once
// A failure on one rank must not leave the others waiting.

#include <functional>

namespace fsdp {

class ProcessGroup;

/// Runs `body`, in which the ranks of `group` meet. An exception that the
/// others do not know of is told to them before it goes on.
void run_together(const ProcessGroup& group, const std::function<void()>& body);

} // namespace fsdp
