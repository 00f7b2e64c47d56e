#include "runtime/init_replay.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using Argument = InitTape::Argument;
using Step = InitTape::Step;
using View = InitTape::View;

/// What a storage holds from the step that fills it to the one that overwrites
/// it.
struct Value {
  std::size_t made_by = 0;
  std::size_t last_use = 0;
  std::size_t bytes = 0;
  bool overwrites = false; ///< needs memory before its step
  std::vector<const InitTarget*> targets;
};

/// Which values a step reads or makes, in terms of storages.
class Plan {
 public:
  Plan(const InitTape& tape, const std::vector<InitTarget>& targets)
      : current_(tape.num_storages()) {
    for (const Step& step : tape.steps()) {
      plan(step);
    }
    for (const InitTarget& target : targets) {
      const std::size_t value = current_[target.view.storage].back();
      values_[value].targets.push_back(&target);
      num_steps_ = std::max(num_steps_, values_[value].last_use + 1);
    }
  }

  std::vector<Value>& values() { return values_; }
  /// The values that step `i` reads, writes or makes.
  const std::vector<std::size_t>& values_of(std::size_t step) const {
    return touched_[step];
  }
  /// The value of `storage` after step `step`.
  std::size_t value_at(std::size_t storage, std::size_t step) const {
    const auto& history = current_[storage];
    const auto next = std::partition_point(
        history.begin(), history.end(), [&](std::size_t value) {
          return values_[value].made_by <= step;
        });
    return *(next - 1);
  }
  std::size_t num_steps() const { return num_steps_; } ///< that are needed

 private:
  void plan(const Step& step) {
    const std::size_t index = touched_.size();
    touched_.emplace_back();
    if (step.overwrites_first) {
      const View& view = step.arguments[0].view;
      make(view.storage, index, view.storage_bytes);
      values_.back().overwrites = true;
    }
    for (const Argument& argument : step.arguments) {
      touch(argument, index);
    }
    for (const auto& result : step.results) {
      if (result && current_[result->storage].empty()) {
        make(result->storage, index, result->storage_bytes);
      }
    }
  }

  void make(std::size_t storage, std::size_t step, std::size_t bytes) {
    current_[storage].push_back(values_.size());
    touched_[step].push_back(values_.size());
    Value& value = values_.emplace_back();
    value.made_by = step;
    value.last_use = step;
    value.bytes = bytes;
  }

  void touch(const Argument& argument, std::size_t step) {
    if (argument.kind == Argument::Kind::kView) {
      const std::size_t value = current_[argument.view.storage].back();
      values_[value].last_use = step;
      if (std::ranges::find(touched_[step], value) == touched_[step].end()) {
        touched_[step].push_back(value);
      }
    }
    for (const Argument& item : argument.items) {
      touch(item, step);
    }
  }

  std::vector<std::vector<std::size_t>> current_; ///< of each storage, in order
  std::vector<Value> values_;
  std::vector<std::vector<std::size_t>> touched_;
  std::size_t num_steps_ = 0;
};

class Replay {
 public:
  Replay(const InitTape& tape, const std::vector<InitTarget>& targets)
      : tape_(tape), plan_(tape, targets), memory_(plan_.values().size()) {
    for (const at::Generator& generator : tape.generators()) {
      generators_.push_back(generator.clone());
    }
  }

  void run(bool to_the_end) {
    const std::size_t end =
        to_the_end ? tape_.steps().size() : plan_.num_steps();
    for (std::size_t step = 0; step < end; ++step) {
      if (!tape_.steps()[step].can_wait) {
        perform(step);
      }
      for (const std::size_t value : plan_.values_of(step)) {
        if (plan_.values()[value].last_use == step) {
          finish(value);
        }
      }
    }
  }

 private:
  void perform(std::size_t index) {
    const Step& step = tape_.steps()[index];
    torch::jit::Stack stack;
    for (const Argument& argument : step.arguments) {
      stack.push_back(bind(argument, index));
    }
    const torch::jit::Stack inputs = stack;
    step.op.callBoxed(&stack);
    std::size_t next = 0;
    const std::size_t count = step.op.schema().returns().size();
    for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
      if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        take(step, next++, stack[i].toTensor(), index, inputs);
      } else if (stack[i].isTensorList()) {
        for (const at::Tensor& tensor : stack[i].toTensorVector()) {
          if (tensor.defined()) {
            take(step, next++, tensor, index, inputs);
          }
        }
      }
    }
  }

  c10::IValue bind(const Argument& argument, std::size_t step) {
    switch (argument.kind) {
      case Argument::Kind::kConstant:
        return argument.constant;
      case Argument::Kind::kGenerator:
        return generators_[argument.generator];
      case Argument::Kind::kView:
        return show(plan_.value_at(argument.view.storage, step), argument.view);
      case Argument::Kind::kList: {
        c10::List<at::Tensor> list;
        for (const Argument& item : argument.items) {
          list.push_back(bind(item, step).toTensor());
        }
        return list;
      }
      case Argument::Kind::kOptionalList:
        break;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const Argument& item : argument.items) {
      list.push_back(bind(item, step).toOptional<at::Tensor>());
    }
    return list;
  }

  at::Tensor show(std::size_t number, const View& view) {
    const Value& value = plan_.values()[number];
    at::Tensor& memory = memory_[number];
    if (!memory.defined() && value.overwrites) {
      memory = at::empty({static_cast<std::int64_t>(value.bytes)}, at::kByte);
    } else if (!memory.defined()) {
      perform(value.made_by); // it could wait
    }
    return at::empty({0}, memory.options().dtype(view.dtype))
        .set_(memory.storage(), view.offset, view.sizes, view.strides);
  }

  void take(
      const Step& step,
      std::size_t index,
      at::Tensor result,
      std::size_t step_number,
      const torch::jit::Stack& inputs) {
    const View& view = *step.results[index];
    if (result.sizes() != view.sizes || result.scalar_type() != view.dtype) {
      throw Error(
          "materialize: '" + toString(step.op.schema().operator_name()) +
          "' gives another shape with values than without; compute it before "
          "the guard");
    }
    const std::size_t number = plan_.value_at(view.storage, step_number);
    if (plan_.values()[number].made_by != step_number ||
        plan_.values()[number].overwrites) {
      return; // of an argument's storage
    }
    const bool is_shared =
        std::any_of(inputs.begin(), inputs.end(), [&](const c10::IValue& in) {
          return in.isTensor() && in.toTensor().defined() &&
                 in.toTensor().is_alias_of(result);
        });
    if (is_shared || result.strides() != view.strides ||
        result.storage_offset() != view.offset ||
        result.storage().nbytes() < view.storage_bytes) {
      at::Tensor copy = at::empty(
          {static_cast<std::int64_t>(view.storage_bytes)},
          result.options().dtype(at::kByte));
      const at::Tensor place =
          at::empty({0}, result.options())
              .set_(copy.storage(), view.offset, view.sizes, view.strides);
      place.copy_(result);
      result = std::move(copy);
    }
    memory_[number] = std::move(result);
  }

  void finish(std::size_t number) {
    for (const InitTarget* target : plan_.values()[number].targets) {
      target->give(show(number, target->view));
    }
    memory_[number].reset();
  }

  const InitTape& tape_;
  Plan plan_;
  std::vector<at::Tensor> memory_; ///< any tensor on the value's storage
  std::vector<at::Generator> generators_;
};

} // namespace

void replay(
    const InitTape& tape,
    const std::vector<InitTarget>& targets,
    bool to_the_end) {
  Replay(tape, targets).run(to_the_end);
}

} // namespace fsdp
