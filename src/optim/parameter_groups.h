#pragma once
// Which parameters of an optimizer take part in a step, checked and sorted into
// the groups that one fused call can take.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::optim {

/// "Float [8, 3]".
std::string dtype_and_shape(const at::Tensor& tensor);

/// Handles of distinct parameters in the order of their first occurrence: a
/// tied parameter is listed once by each module that has it, and is to be
/// stepped once. Throws UsageError for an undefined tensor and for a dtype that
/// is not real floating point.
std::vector<at::Tensor> distinct_parameters(
    std::vector<at::Tensor> parameters, std::string_view optimizer);

/// A parameter with a gradient, `index` its place in the optimizer's list.
struct Candidate {
  std::size_t index;
  at::Tensor parameter;
  at::Tensor grad; ///< laid out in memory as `parameter` is
};

/// The parameters that have a gradient, grouped by device and dtype. Throws
/// UsageError for a gradient whose shape or dtype is not its parameter's and
/// for a parameter with gaps in memory.
std::vector<std::vector<Candidate>> group_candidates(
    const std::vector<at::Tensor>& parameters, std::string_view optimizer);

/// Throws UsageError unless `state`, made earlier for parameter `index`, still
/// has the parameter's shape and dtype.
void check_state(
    const at::Tensor& state,
    const Candidate& candidate,
    std::string_view optimizer);

/// Marks the parameters as written: the fused kernels do not, and a backward
/// whose saved parameters were stepped under it would go unnoticed.
void bump_versions(const std::vector<at::Tensor>& parameters);

} // namespace fsdp::optim
