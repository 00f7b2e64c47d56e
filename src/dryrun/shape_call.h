#pragma once
// Calling a LibTorch function for the shapes of its results only.

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace fsdp {

/// Runs `op` on meta tensors in place of the dry ones on the stack, and puts
/// dry tensors of the results' shapes in place of the arguments. Results that
/// see an argument's memory (views, in-place calls) see the dry one's. Throws
/// UsageError naming `op` if the meta device cannot run it.
void call_with_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack);

} // namespace fsdp
