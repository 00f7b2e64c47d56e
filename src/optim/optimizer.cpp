// What the fused optimizers have in common.

#include <ATen/core/Tensor.h>

#include <utility>

#include "fsdp/optim.h"
#include "optim/state_slots.h"

namespace fsdp {

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr) {}

std::vector<optim::StateSlot> optim::slots_of(
    Optimizer& optimizer, std::size_t index) {
  return optimizer.slots(index);
}

void Optimizer::zero_grad() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

} // namespace fsdp
