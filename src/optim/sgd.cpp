// Stochastic gradient descent over the local shards.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/optim.h"
#include "optim/option_checks.h"
#include "optim/parameter_groups.h"
#include "optim/state_slots.h"
#include "runtime/memory_account.h"

namespace fsdp {

using optim::require;
using optim::require_not_negative;

namespace {

/// The argument lists of one fused SGD call. In a parameter's first step the
/// kernel sets its momentum buffer, afterwards it updates it, so that the two
/// cases need a call each.
struct SgdLists {
  bool is_first_step = false;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> momentum_buffers;
};

std::vector<SgdLists> gather_sgd_lists(
    const std::vector<std::vector<optim::Candidate>>& groups,
    std::vector<at::Tensor>& momentum_buffers,
    bool has_momentum) {
  // All checks come before the first state is made.
  for (const auto& group : groups) {
    for (const optim::Candidate& candidate : group) {
      if (momentum_buffers[candidate.index].defined()) {
        optim::check_state(momentum_buffers[candidate.index], candidate, "SGD");
      }
    }
  }
  std::vector<SgdLists> calls;
  for (const auto& group : groups) {
    SgdLists first;
    first.is_first_step = true;
    SgdLists later;
    for (const optim::Candidate& candidate : group) {
      at::Tensor& buffer = momentum_buffers[candidate.index];
      const bool is_first = has_momentum && !buffer.defined();
      if (is_first) {
        // State must outlive an inference-mode scope around the first step.
        const c10::InferenceMode guard(false);
        const MemoryScope scope(MemoryComponent::kOptimizerState);
        buffer = at::zeros_like(candidate.parameter);
      }
      SgdLists& lists = is_first ? first : later;
      if (has_momentum) {
        lists.momentum_buffers.push_back(buffer);
      }
      lists.parameters.push_back(candidate.parameter);
      lists.grads.push_back(candidate.grad);
    }
    for (SgdLists* lists : {&first, &later}) {
      if (!lists->parameters.empty()) {
        calls.push_back(std::move(*lists));
      }
    }
  }
  return calls;
}

} // namespace

struct SGD::State {
  SGDOptions options;
  /// By parameter; undefined until its first gradient.
  std::vector<at::Tensor> momentum_buffers;
};

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions options)
    : Optimizer(
          optim::distinct_parameters(std::move(parameters), "SGD"),
          options.lr) {
  require_not_negative("SGD", "lr", options.lr);
  require_not_negative("SGD", "momentum", options.momentum);
  require_not_negative("SGD", "weight_decay", options.weight_decay);
  require(
      std::isfinite(options.dampening),
      "SGD",
      "dampening",
      options.dampening,
      "a finite number");
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0)) {
    throw UsageError(
        "SGD: nesterov is set, expected a momentum above 0 and no dampening");
  }
  state_ = std::make_unique<State>(
      State{options, std::vector<at::Tensor>(parameters_.size())});
}

SGD::~SGD() = default;

void SGD::step() {
  require_not_negative("SGD", "lr", lr_);
  const at::NoGradGuard no_grad;
  const SGDOptions& options = state_->options;
  const std::vector<SgdLists> calls = gather_sgd_lists(
      optim::group_candidates(parameters_, "SGD"),
      state_->momentum_buffers,
      options.momentum != 0);
  for (const SgdLists& lists : calls) {
    at::_fused_sgd_(
        lists.parameters,
        lists.grads,
        lists.momentum_buffers,
        options.weight_decay,
        options.momentum,
        lr_,
        options.dampening,
        options.nesterov,
        /*maximize=*/false,
        lists.is_first_step);
    optim::bump_versions(lists.parameters);
  }
}

std::vector<optim::StateSlot> SGD::slots(std::size_t index) {
  if (state_->options.momentum == 0) {
    return {};
  }
  return {
      {"momentum_buffer",
       &state_->momentum_buffers[index],
       parameters_[index]}};
}

} // namespace fsdp
