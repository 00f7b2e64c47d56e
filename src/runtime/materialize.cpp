#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/meta_init.h"
#include "runtime/autograd_internals.h"
#include "runtime/init_replay.h"
#include "runtime/init_tape.h"
#include "runtime/name_list.h"
#include "runtime/no_recording.h"
#include "runtime/param_registry.h"
#include "runtime/random_state.h"
#include "runtime/sharded_param.h"

namespace fsdp {
namespace {

/// A parameter or buffer that waits for its value.
struct Waiting {
  std::string name;
  at::Tensor registered;
  ShardedParam* param = nullptr; ///< null: not sharded
  /// With all its rows, on the meta device.
  const at::Tensor& full() const {
    return param ? param->awaited() : registered;
  }
};

/// Each once, by its first name.
std::vector<Waiting> find_waiting(const torch::nn::Module& module) {
  std::vector<Waiting> waiting;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto look_at = [&](const std::string& name, const at::Tensor& tensor) {
    ShardedParam* param = find_sharded_param(tensor);
    const bool waits = param ? param->awaited().defined() : tensor.is_meta();
    if (waits && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      waiting.push_back({name, tensor, param});
    }
  };
  for (const auto& item : module.named_parameters()) {
    look_at(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    look_at(item.key(), item.value());
  }
  return waiting;
}

void check_recorded(const std::vector<Waiting>& waiting) {
  std::vector<std::string> unknown;
  std::vector<std::string> written;
  for (const Waiting& item : waiting) {
    const auto tape = tape_of(item.full());
    if (!tape) {
      unknown.push_back(item.name);
    } else if (tape->missed_a_write(item.registered, item.full())) {
      written.push_back(item.name);
    }
  }
  if (!unknown.empty()) {
    throw UsageError(
        "materialize: no MetaInitGuard has recorded how " + name_list(unknown) +
        " came about; make it inside the guard, to(dtype) included, or call "
        "to_empty() and fill it");
  }
  if (!written.empty()) {
    throw UsageError(
        "materialize: " + name_list(written) +
        " was written to outside of its MetaInitGuard, which would be lost; "
        "initialise it inside the guard, or after materialize()");
  }
}

void give_value(const Waiting& waiting, const at::Tensor& value) {
  if (waiting.param) {
    waiting.param->give_full_value(value);
  } else {
    become(waiting.registered, value);
  }
}

struct TapeTargets {
  std::shared_ptr<InitTape> tape;
  std::vector<InitTarget> targets;
};

/// By the tapes' numbers: the order in which their guards were entered.
std::map<std::uint64_t, TapeTargets> find_targets(
    const std::vector<Waiting>& waiting) {
  std::map<std::uint64_t, TapeTargets> found;
  std::unordered_set<const c10::TensorImpl*> named;
  for (const Waiting& item : waiting) {
    auto tape = tape_of(item.full());
    TapeTargets& of_tape = found[tape->number()];
    named.insert(item.registered.unsafeGetTensorImpl());
    of_tape.targets.push_back(
        {tape->view_of(item.full()),
         [item](const at::Tensor& value) { give_value(item, value); }});
    of_tape.tape = std::move(tape);
  }
  for (auto& [number, of_tape] : found) {
    for (const at::Tensor& tensor : of_tape.tape->living_tensors()) {
      if (tape_of(tensor) == of_tape.tape && !tensor.requires_grad() &&
          !named.contains(tensor.unsafeGetTensorImpl())) {
        of_tape.targets.push_back(
            {of_tape.tape->view_of(tensor),
             [tensor](const at::Tensor& value) { become(tensor, value); }});
      }
    }
  }
  return found;
}

} // namespace

void materialize(torch::nn::Module& module, std::uint64_t seed) {
  const NoRecording no_recording;
  const c10::InferenceMode inference_off(false);
  const c10::AutoGradMode grad_off(false);
  const std::vector<Waiting> waiting = find_waiting(module);
  check_recorded(waiting);
  const auto tapes = find_targets(waiting);
  BorrowedRandomState random;
  random.seed(seed);
  std::size_t num_left = tapes.size();
  for (const auto& [number, of_tape] : tapes) {
    replay(*of_tape.tape, of_tape.targets, --num_left > 0);
  }
}

void to_empty(torch::nn::Module& module, c10::Device device) {
  const NoRecording no_recording;
  const c10::InferenceMode inference_off(false);
  const c10::AutoGradMode grad_off(false);
  const std::vector<Waiting> waiting = find_waiting(module);
  for (const Waiting& item : waiting) {
    if (item.param && item.param->device().type() != device.type()) {
      throw UsageError(
          "to_empty: device is " + device.str() + ", the mesh of parameter '" +
          item.name + "' is on " + item.param->device().str() +
          "; pass the mesh's device");
    }
  }
  for (const Waiting& item : waiting) {
    const auto& shown = item.registered;
    const at::Tensor empty = at::empty_strided(
        shown.sizes(), shown.strides(), shown.options().device(device));
    if (item.param) {
      item.param->give_rows(empty);
    } else {
      become(item.registered, empty);
    }
  }
}

} // namespace fsdp
