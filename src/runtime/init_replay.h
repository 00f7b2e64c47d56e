#pragma once
// Doing again, with memory, what a tape has recorded.

#include <functional>
#include <vector>

#include "runtime/init_tape.h"

namespace fsdp {

/// A tensor that wants its value: `give` gets the whole of it, on memory that
/// other targets of the same storage share.
struct InitTarget {
  InitTape::View view;
  std::function<void(const at::Tensor& value)> give;
};

/// Runs the steps in their order on the current random generator. A storage
/// exists from the first step that needs it to the last one; then its targets
/// get it. `to_the_end`: also random numbers that no target needs are drawn.
void replay(
    const InitTape& tape,
    const std::vector<InitTarget>& targets,
    bool to_the_end);

} // namespace fsdp
