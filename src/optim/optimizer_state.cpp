#include "fsdp/optim_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "fsdp/error.h"
#include "optim/parameter_groups.h"
#include "optim/state_slots.h"
#include "runtime/memory_account.h"
#include "runtime/param_registry.h"
#include "runtime/type_name.h"

namespace fsdp {
namespace {

using optim::StateSlot;

/// The names of the optimizer's parameters, in its order.
std::vector<std::string> names_of(
    const torch::nn::Module& module, const Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& entry : module.named_parameters()) {
    names.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
  }
  std::vector<std::string> result;
  for (const at::Tensor& parameter : optimizer.parameters()) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    if (found == names.end()) {
      throw UsageError(
          "parameter " + std::to_string(result.size()) +
          " of the optimizer is not below module '" + type_name(module) +
          "'; name the module whose parameters it was made with");
    }
    if (is_gathered(parameter)) {
      throw UsageError(
          "the optimizer state of '" + found->second +
          "' is asked for while the parameter is gathered; reshard() its unit "
          "first");
    }
    result.push_back(found->second);
  }
  return result;
}

void check_tensor(
    const std::string& name, const StateSlot& slot, const at::Tensor& value) {
  if (value.sizes() != slot.expected.sizes() ||
      value.scalar_type() != slot.expected.scalar_type()) {
    throw UsageError(
        "optimizer state '" + std::string(slot.name) + "' of '" + name +
        "' is " + optim::dtype_and_shape(value) + ", expected " +
        optim::dtype_and_shape(slot.expected) +
        "; load what this rank has kept of the same model");
  }
}

/// Why the entry cannot be gone on with, or an empty text. An empty entry is
/// that of a parameter before its first step.
std::string what_is_missing(
    const std::string& name,
    const std::vector<StateSlot>& slots,
    const OptimizerState& state) {
  const auto entry = state.find(name);
  if (entry == state.end()) {
    return "no optimizer state for '" + name + "'";
  }
  for (const StateSlot& slot : slots) {
    if (!entry->second.empty() && !entry->second.contains(slot.name)) {
      return "no optimizer state '" + std::string(slot.name) + "' for '" +
             name + "'";
    }
  }
  return "";
}

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError(
      what +
      "; load the state of the same model and optimizer, or pass strict "
      "= false to begin anew where it does not fit");
}

} // namespace

OptimizerState optimizer_state(
    const torch::nn::Module& module, const Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  OptimizerState state;
  const auto names = names_of(module, optimizer);
  for (std::size_t i = 0; i < names.size(); ++i) {
    ParameterState& entry = state[names[i]];
    // The slots are only read here.
    for (const StateSlot& slot :
         optim::slots_of(const_cast<Optimizer&>(optimizer), i)) {
      if (slot.tensor->defined()) {
        entry.emplace(slot.name, slot.tensor->clone());
      }
    }
  }
  return state;
}

std::vector<std::string> load_optimizer_state(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const OptimizerState& state,
    bool strict) {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode inference_off(false);
  const MemoryScope scope(MemoryComponent::kOptimizerState);
  const auto names = names_of(module, optimizer);
  std::vector<std::string> left_out;
  std::vector<std::pair<at::Tensor*, at::Tensor>> writes;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto slots = optim::slots_of(optimizer, i);
    const std::string missing = what_is_missing(names[i], slots, state);
    if (!missing.empty()) {
      if (strict) {
        refuse(missing);
      }
      left_out.push_back(names[i]);
    }
    const ParameterState none;
    const ParameterState& entry = missing.empty() ? state.at(names[i]) : none;
    for (const StateSlot& slot : slots) {
      const auto value = entry.find(slot.name);
      if (value != entry.end()) {
        check_tensor(names[i], slot, value->second);
      }
      writes.emplace_back(
          slot.tensor,
          value == entry.end() ? at::Tensor() : value->second.clone());
    }
  }
  for (const auto& [name, entry] : state) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      if (strict) {
        refuse("optimizer state for '" + name + "', which it does not step");
      }
      left_out.push_back(name);
    }
  }
  for (auto& [tensor, value] : writes) {
    *tensor = std::move(value);
  }
  return left_out;
}

} // namespace fsdp
