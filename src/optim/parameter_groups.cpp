#include "optim/parameter_groups.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"
#include "runtime/param_registry.h"
#include "runtime/sizes_text.h"

namespace fsdp::optim {
namespace {

std::string dtype_of(const at::Tensor& tensor) {
  return c10::toString(tensor.scalar_type());
}

/// A sharded parameter by its name, another by its place in the list.
[[noreturn]] void fail(
    std::string_view optimizer,
    const at::Tensor& parameter,
    std::size_t index,
    const std::string& what) {
  const ProcessGroup* group = shard_group_of(parameter);
  throw UsageError(
      (group ? rank_prefix(group->rank()) : "") + std::string(optimizer) +
      ": " +
      (group ? describe_parameter(parameter)
             : "parameter " + std::to_string(index)) +
      " " + what);
}

void check_gradient(
    const at::Tensor& parameter,
    const at::Tensor& grad,
    std::size_t index,
    std::string_view optimizer) {
  if (is_gathered(parameter)) {
    fail(
        optimizer,
        parameter,
        index,
        "is gathered, expected this rank's shard: call reshard() before "
        "step(), "
        "and step() after backward() has returned");
  }
  if (grad.layout() != c10::Layout::Strided) {
    fail(
        optimizer,
        parameter,
        index,
        "has a sparse gradient, expected a dense one: make the embedding with "
        "sparse(false)");
  }
  if (grad.sizes() != parameter.sizes()) {
    fail(
        optimizer,
        parameter,
        index,
        "has shape " + sizes_text(parameter.sizes()) +
            " but a gradient of shape " + sizes_text(grad.sizes()) +
            ": call step() after backward() has returned, and do not assign "
            "full gradients to sharded parameters");
  }
  if (grad.scalar_type() != parameter.scalar_type()) {
    fail(
        optimizer,
        parameter,
        index,
        "has dtype " + dtype_of(parameter) + " but a gradient of dtype " +
            dtype_of(grad) + ": cast the gradient");
  }
  if (!parameter.is_non_overlapping_and_dense()) {
    fail(
        optimizer,
        parameter,
        index,
        "of shape " + sizes_text(parameter.sizes()) +
            " has gaps in memory, expected a dense tensor: make it with "
            "contiguous() or clone()");
  }
}

// The fused kernels walk parameter, gradient and state as flat memory.
at::Tensor with_layout_of(const at::Tensor& parameter, at::Tensor grad) {
  if (grad.strides() == parameter.strides()) {
    return grad;
  }
  at::Tensor copy =
      at::empty_strided(parameter.sizes(), parameter.strides(), grad.options());
  copy.copy_(grad);
  return copy;
}

} // namespace

std::string dtype_and_shape(const at::Tensor& tensor) {
  return dtype_of(tensor) + " " + sizes_text(tensor.sizes());
}

std::vector<at::Tensor> distinct_parameters(
    std::vector<at::Tensor> parameters, std::string_view optimizer) {
  std::vector<at::Tensor> distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    at::Tensor& parameter = parameters[index];
    if (!parameter.defined()) {
      fail(
          optimizer,
          parameter,
          index,
          "is an undefined tensor, expected a parameter");
    }
    if (!c10::isFloatingType(parameter.scalar_type())) {
      fail(
          optimizer,
          parameter,
          index,
          "has dtype " + dtype_of(parameter) +
              ", expected a real floating type: leave it out");
    }
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      distinct.push_back(std::move(parameter));
    }
  }
  return distinct;
}

std::vector<std::vector<Candidate>> group_candidates(
    const std::vector<at::Tensor>& parameters, std::string_view optimizer) {
  std::vector<std::vector<Candidate>> groups;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const at::Tensor& parameter = parameters[index];
    const at::Tensor& grad = parameter.grad();
    if (!grad.defined()) {
      continue;
    }
    check_gradient(parameter, grad, index, optimizer);
    const auto group = std::find_if(
        groups.begin(), groups.end(), [&](const std::vector<Candidate>& other) {
          const at::Tensor& first = other.front().parameter;
          return first.scalar_type() == parameter.scalar_type() &&
                 first.device() == parameter.device();
        });
    Candidate candidate{index, parameter, with_layout_of(parameter, grad)};
    if (group == groups.end()) {
      groups.push_back({std::move(candidate)});
    } else {
      group->push_back(std::move(candidate));
    }
  }
  return groups;
}

void check_state(
    const at::Tensor& state,
    const Candidate& candidate,
    std::string_view optimizer) {
  const at::Tensor& parameter = candidate.parameter;
  if (state.sizes() != parameter.sizes() ||
      state.scalar_type() != parameter.scalar_type() ||
      state.strides() != parameter.strides()) {
    fail(
        optimizer,
        parameter,
        candidate.index,
        "is " + dtype_and_shape(parameter) +
            " but its optimizer state was made for " + dtype_and_shape(state) +
            ": construct the optimizer after fully_shard and to(dtype)");
  }
}

void bump_versions(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

} // namespace fsdp::optim
