// What the fused optimizers have in common.

#include <ATen/core/Tensor.h>

#include <utility>

#include "fsdp/optim.h"

namespace fsdp {

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr) {}

void Optimizer::zero_grad() {
  for (const at::Tensor& parameter : parameters_) {
    parameter.mutable_grad() = at::Tensor();
  }
}

} // namespace fsdp
