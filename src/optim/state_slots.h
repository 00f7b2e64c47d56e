#pragma once
// Where an optimizer keeps the state of its parameters.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp/optim.h"

namespace fsdp::optim {

/// One tensor of a parameter's state.
struct StateSlot {
  const char* name;    ///< torch.optim's
  at::Tensor* tensor;  ///< undefined before the parameter's first step
  at::Tensor expected; ///< of the shape and dtype that it must have
};

/// Those of parameter `index`; valid as long as the optimizer lives.
std::vector<StateSlot> slots_of(Optimizer& optimizer, std::size_t index);

} // namespace fsdp::optim
