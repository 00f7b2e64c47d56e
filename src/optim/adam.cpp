// Adam and AdamW over the local shards.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>

#include <string_view>
#include <utility>

#include "fsdp/optim.h"
#include "optim/option_checks.h"
#include "optim/parameter_groups.h"
#include "optim/state_slots.h"
#include "runtime/memory_account.h"

namespace fsdp {
namespace {

using optim::require;
using optim::require_not_negative;

template <typename Options>
void check_adam_options(std::string_view optimizer, const Options& options) {
  require_not_negative(optimizer, "lr", options.lr);
  require_not_negative(optimizer, "eps", options.eps);
  require_not_negative(optimizer, "weight_decay", options.weight_decay);
  for (const auto& [name, beta] :
       {std::pair{"beta1", options.beta1}, std::pair{"beta2", options.beta2}}) {
    require(beta >= 0 && beta < 1, optimizer, name, beta, "a number in [0, 1)");
  }
}

/// Moments and step count of one parameter; undefined until its first gradient.
struct Moments {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor step; ///< 0-dim float32 on the parameter's device
};

Moments make_moments(const at::Tensor& parameter) {
  // State must outlive an inference-mode scope that the first step may run in.
  const c10::InferenceMode guard(false);
  const MemoryScope scope(MemoryComponent::kOptimizerState);
  return {
      at::zeros_like(parameter),
      at::zeros_like(parameter),
      at::zeros({}, parameter.options().dtype(at::kFloat))};
}

/// The argument lists of one fused Adam call.
struct AdamLists {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> steps;
};

AdamLists gather_lists(
    const std::vector<optim::Candidate>& group,
    std::vector<Moments>& moments,
    std::string_view optimizer) {
  AdamLists lists;
  for (const optim::Candidate& candidate : group) {
    Moments& state = moments[candidate.index];
    if (!state.step.defined()) {
      state = make_moments(candidate.parameter);
    }
    optim::check_state(state.exp_avg, candidate, optimizer);
    lists.parameters.push_back(candidate.parameter);
    lists.grads.push_back(candidate.grad);
    lists.exp_avgs.push_back(state.exp_avg);
    lists.exp_avg_sqs.push_back(state.exp_avg_sq);
    lists.steps.push_back(state.step);
  }
  return lists;
}

template <typename Options>
struct AdamState {
  Options options;
  std::vector<Moments> moments; ///< by parameter
};

template <typename Options>
AdamState<Options> checked_state(
    std::string_view optimizer,
    const Options& options,
    std::size_t num_parameters) {
  check_adam_options(optimizer, options);
  return {options, std::vector<Moments>(num_parameters)};
}

/// `fused_step` is at::_fused_adam_ or at::_fused_adamw_: they differ in what
/// weight decay does.
template <typename Options, typename FusedStep>
void adam_step(
    std::string_view optimizer,
    const std::vector<at::Tensor>& parameters,
    AdamState<Options>& state,
    double lr,
    FusedStep fused_step) {
  require_not_negative(optimizer, "lr", lr);
  const at::NoGradGuard no_grad;
  // All checks come before the first write.
  const auto groups = optim::group_candidates(parameters, optimizer);
  std::vector<AdamLists> calls;
  for (const auto& group : groups) {
    calls.push_back(gather_lists(group, state.moments, optimizer));
  }
  const Options& options = state.options;
  for (AdamLists& lists : calls) {
    at::_foreach_add_(lists.steps, 1);
    fused_step(
        lists.parameters,
        lists.grads,
        lists.exp_avgs,
        lists.exp_avg_sqs,
        /*max_exp_avg_sqs=*/at::TensorList(),
        lists.steps,
        lr,
        options.beta1,
        options.beta2,
        options.weight_decay,
        options.eps,
        /*amsgrad=*/false,
        /*maximize=*/false);
    optim::bump_versions(lists.parameters);
  }
}

template <typename Options>
std::vector<optim::StateSlot> adam_slots(
    const at::Tensor& parameter, AdamState<Options>& state, std::size_t index) {
  Moments& moments = state.moments[index];
  const at::Tensor step = at::zeros({}, parameter.options().dtype(at::kFloat));
  return {
      {"exp_avg", &moments.exp_avg, parameter},
      {"exp_avg_sq", &moments.exp_avg_sq, parameter},
      {"step", &moments.step, step}};
}

} // namespace

struct AdamW::State : AdamState<AdamWOptions> {};

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : Optimizer(
          optim::distinct_parameters(std::move(parameters), "AdamW"),
          options.lr),
      state_(std::make_unique<State>(
          State{checked_state("AdamW", options, parameters_.size())})) {}

AdamW::~AdamW() = default;

void AdamW::step() {
  adam_step("AdamW", parameters_, *state_, lr_, [](auto&&... arguments) {
    at::_fused_adamw_(arguments...);
  });
}

std::vector<optim::StateSlot> AdamW::slots(std::size_t index) {
  return adam_slots(parameters_[index], *state_, index);
}

struct Adam::State : AdamState<AdamOptions> {};

Adam::Adam(std::vector<at::Tensor> parameters, AdamOptions options)
    : Optimizer(
          optim::distinct_parameters(std::move(parameters), "Adam"),
          options.lr),
      state_(std::make_unique<State>(
          State{checked_state("Adam", options, parameters_.size())})) {}

Adam::~Adam() = default;

void Adam::step() {
  adam_step("Adam", parameters_, *state_, lr_, [](auto&&... arguments) {
    at::_fused_adam_(arguments...);
  });
}

std::vector<optim::StateSlot> Adam::slots(std::size_t index) {
  return adam_slots(parameters_[index], *state_, index);
}

} // namespace fsdp
