// The guard: a fallback in front of every LibTorch function (the dispatch key
// DeferredInit, which nothing else uses) that runs the function on the meta
// device and puts it on the tape. Its registration must stay in this file: a
// program that uses the guard then has it, also from a static library.

#include "fsdp/meta_init.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "runtime/init_tape.h"
#include "runtime/map_tensors.h"
#include "runtime/no_recording.h"
#include "runtime/random_state.h"

namespace fsdp {
namespace {

thread_local std::shared_ptr<InitTape> t_tape;

using Argument = InitTape::Argument;
using Values = std::vector<c10::IValue>;

/// Calls f(tensor) for the defined tensors in `value`, which may be lists.
template <typename F>
void for_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      f(value.toTensor());
    }
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& item : value.toListRef()) {
      for_tensors(item, f);
    }
  }
}

/// Lets LibTorch's functions see the missing memory of their arguments.
class MemoryAccess {
 public:
  explicit MemoryAccess(const Values& inputs) : inputs_(inputs) { set(false); }
  ~MemoryAccess() { set(true); }
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;

 private:
  void set(bool guarded) const {
    for (const c10::IValue& input : inputs_) {
      for_tensors(input, [&](const at::Tensor& tensor) {
        if (tensor.is_meta()) {
          InitTape::guard_memory_of(tensor, guarded);
        }
      });
    }
  }
  const Values& inputs_;
};

/// One call of a LibTorch function under the guard.
class RecordedCall {
 public:
  RecordedCall(
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack,
      std::shared_ptr<InitTape> tape)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        tape_(std::move(tape)),
        inputs_(
            stack.end() -
                static_cast<std::ptrdiff_t>(schema_.arguments().size()),
            stack.end()) {}

  void run() {
    look_at_inputs();
    if (!is_to_be_recorded()) {
      op_.callBoxed(&stack_);
      return;
    }
    check_inputs();
    const MemoryAccess access(inputs_);
    InitTape::Step step{.op = op_, .arguments = capture(), .results = {}};
    call_on_meta();
    const bool has_made_something = take_results(step);
    name_dtype(step);
    if (has_made_something || writes_) {
      step.overwrites_first = overwrites_first(step);
      step.can_wait = !has_tensors() && !is_random_;
      tape_->append(std::move(step));
    }
    for (const c10::IValue& input : inputs_) {
      for_tensors(input, [&](const at::Tensor& t) { tape_->note(t); });
    }
  }

 private:
  std::string name() const {
    return "MetaInitGuard: '" + toString(schema_.operator_name()) + "'";
  }
  bool has_tensors() const { return has_meta_ || has_real_; }

  void look_at_inputs() {
    is_random_ = op_.hasTag(at::Tag::nondeterministic_seeded);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const c10::Argument& argument = schema_.arguments()[i];
      const auto* alias = argument.alias_info();
      const bool is_written = alias != nullptr && alias->isWrite();
      aliases_ = aliases_ || alias != nullptr;
      writes_ = writes_ || is_written;
      has_device_ = has_device_ || argument.name() == "device";
      is_random_ = is_random_ || argument.name() == "generator";
      for_tensors(inputs_[i], [&](const at::Tensor& tensor) {
        const bool is_real = !tensor.is_meta();
        has_meta_ = has_meta_ || !is_real;
        has_real_ = has_real_ || is_real;
        writes_real_ = writes_real_ || (is_written && is_real);
      });
    }
  }

  // What is made of values only has its value at once; random numbers must
  // come in their order.
  bool is_to_be_recorded() const {
    if (has_meta_) {
      return true;
    }
    return has_real_ ? is_random_ : has_device_;
  }

  void check_inputs() const {
    if (writes_real_) {
      throw UsageError(
          name() +
          " would write what has no value yet into a tensor that has values; "
          "do it before the guard, or make that tensor inside the guard");
    }
    for (const c10::IValue& input : inputs_) {
      if (input.isStorage()) {
        throw UsageError(
            name() + " of a storage cannot be recorded; use tensors");
      }
      for_tensors(input, [&](const at::Tensor& tensor) {
        if (tensor.is_meta() && tape_of(tensor) != tape_) {
          throw UsageError(
              name() +
              (tape_of(tensor)
                   ? " takes a tensor of another MetaInitGuard; build both "
                     "under one guard"
                   : " takes a meta tensor that no MetaInitGuard has made; "
                     "make it inside the guard"));
        }
        if (tensor.layout() != c10::kStrided || tensor.is_conj() ||
            tensor.is_neg()) {
          throw UsageError(
              name() +
              " takes a sparse, conjugated or negated tensor, which cannot be "
              "recorded; use dense tensors (resolve_conj)");
        }
      });
    }
  }

  Argument capture(const c10::IValue& value) const {
    Argument argument;
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.is_meta()) {
        argument.constant = tensor.detach().clone();
      } else {
        argument.kind = Argument::Kind::kView;
        argument.view = tape_->view_of(tensor);
      }
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      argument.kind = value.isTensorList() ? Argument::Kind::kList
                                           : Argument::Kind::kOptionalList;
      for (const c10::IValue& item : value.toListRef()) {
        argument.items.push_back(capture(item));
      }
    } else if (
        value.isGenerator() &&
        value.toGenerator() != BorrowedRandomState::generator()) {
      argument.kind = Argument::Kind::kGenerator;
      argument.generator = tape_->generator_number(value.toGenerator());
    } else {
      argument.constant = value;
    }
    return argument;
  }

  std::vector<Argument> capture() const {
    std::vector<Argument> arguments;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const c10::IValue& input = inputs_[i];
      const bool is_meta_device = schema_.arguments()[i].name() == "device" &&
                                  input.isDevice() &&
                                  input.toDevice().is_meta();
      arguments.push_back(capture(is_meta_device ? c10::IValue() : input));
    }
    return arguments;
  }

  /// The inputs on `device`; tensors that are elsewhere by their shape.
  Values inputs_on(c10::DeviceType device) const {
    Values values;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::string& name = schema_.arguments()[i].name();
      if (name == "device") {
        values.emplace_back(c10::Device(device));
      } else if (name == "pin_memory") {
        values.emplace_back();
      } else {
        values.push_back(map_tensors(inputs_[i], [&](const at::Tensor& t) {
          return t.device().type() == device ? t : shaped_like(t, device);
        }));
      }
    }
    return values;
  }

  void put_on_stack(Values values) {
    stack_.resize(stack_.size() - inputs_.size());
    std::move(values.begin(), values.end(), std::back_inserter(stack_));
  }

  void call_on_meta() {
    const std::size_t below = stack_.size() - inputs_.size();
    put_on_stack(inputs_on(c10::DeviceType::Meta));
    try {
      op_.callBoxed(&stack_);
    } catch (const c10::NotImplementedError&) {
      refuse_unless_shape_is_known();
      stack_.resize(below);
      try {
        call_on_zeros();
      } catch (const c10::Error&) {
        refuse(); // zeros are no valid input of it
      }
    } catch (const c10::Error&) {
      if (returns_tensors() && !op_.hasTag(at::Tag::data_dependent_output)) {
        throw; // a mistake that it would be without the guard, too
      }
      refuse();
    }
  }

  [[noreturn]] void refuse() const {
    throw UsageError(
        name() +
        " needs the value of a tensor that has none yet; compute it before the "
        "guard, or from other than tensors");
  }

  void refuse_unless_shape_is_known() const {
    if (aliases_ || !returns_tensors() ||
        op_.hasTag(at::Tag::data_dependent_output) ||
        op_.hasTag(at::Tag::dynamic_output_shape)) {
      refuse();
    }
  }

  bool returns_tensors() const {
    const auto& returns = schema_.returns();
    return !returns.empty() &&
           std::all_of(returns.begin(), returns.end(), [](const auto& result) {
             return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
                    result.type()->isSubtypeOf(*c10::ListType::ofTensors());
           });
  }

  // LibTorch cannot tell the result's shape of every function (randperm,
  // polar): it is computed once to see it.
  void call_on_zeros() {
    const BorrowedRandomState kept;
    Values values = inputs_on(c10::DeviceType::CPU);
    for (c10::IValue& value : values) {
      for_tensors(value, [](const at::Tensor& tensor) { tensor.zero_(); });
      if (value.isGenerator()) {
        value = c10::IValue();
      }
    }
    const std::size_t below = stack_.size();
    std::move(values.begin(), values.end(), std::back_inserter(stack_));
    op_.callBoxed(&stack_);
    for (std::size_t i = below; i < stack_.size(); ++i) {
      stack_[i] = map_tensors(stack_[i], [](const at::Tensor& tensor) {
        return tensor.layout() == c10::kStrided
                   ? shaped_like(tensor, c10::DeviceType::Meta)
                   : tensor;
      });
    }
  }

  /// Whether there is a tensor of a new storage among them.
  bool take_results(InitTape::Step& step) {
    bool any_new = false;
    const std::size_t count = schema_.returns().size();
    for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i) {
      for_tensors(stack_[i], [&](const at::Tensor& tensor) {
        if (!tensor.is_meta() || tensor.layout() != c10::kStrided) {
          throw UsageError(
              name() +
              " gives a tensor that cannot be recorded; make it before the "
              "guard");
        }
        if (!tape_of(tensor)) {
          tape_->adopt(tensor);
          any_new = true;
        }
        InitTape::guard_memory_of(tensor, true);
        step.results.push_back(tape_->view_of(tensor));
        tape_->note(tensor);
      });
    }
    return any_new;
  }

  /// The default dtype may be another one when the call is done again.
  void name_dtype(InitTape::Step& step) const {
    if (step.results.empty() || !step.results.front()) {
      return;
    }
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      if (schema_.arguments()[i].name() == "dtype" && inputs_[i].isNone()) {
        step.arguments[i].constant = step.results.front()->dtype;
      }
    }
  }

  bool overwrites_first(const InitTape::Step& step) const {
    constexpr std::array<std::string_view, 6> kFillers = {
        "aten::normal_",
        "aten::uniform_",
        "aten::zero_",
        "aten::fill_",
        "aten::copy_",
        "aten::random_"};
    if (std::ranges::find(kFillers, schema_.name()) == kFillers.end() ||
        step.arguments[0].kind != Argument::Kind::kView ||
        !step.arguments[0].view.covers_storage) {
      return false;
    }
    return std::none_of(
        step.arguments.begin() + 1,
        step.arguments.end(),
        [&](const Argument& other) {
          return other.kind == Argument::Kind::kView &&
                 other.view.storage == step.arguments[0].view.storage;
        });
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  const std::shared_ptr<InitTape> tape_;
  const Values inputs_;
  bool has_meta_ = false;
  bool has_real_ = false;
  bool has_device_ = false;
  bool is_random_ = false;
  bool aliases_ = false; ///< an argument is written or seen by a result
  bool writes_ = false;
  bool writes_real_ = false;
};

void record(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  const NoRecording once;
  if (t_tape) {
    RecordedCall(op, *stack, t_tape).run();
  } else { // another thread, to which the guard's has handed its settings
    op.callBoxed(stack);
  }
}

} // namespace

struct MetaInitGuard::Scope {
  std::shared_ptr<InitTape> outer = t_tape;
  c10::impl::IncludeDispatchKeyGuard active{c10::DispatchKey::DeferredInit};
};

MetaInitGuard::MetaInitGuard() : scope_(std::make_unique<Scope>()) {
  static std::atomic<std::uint64_t> num_tapes{0};
  if (!t_tape) {
    t_tape = std::make_shared<InitTape>(++num_tapes);
  }
}

MetaInitGuard::~MetaInitGuard() {
  if (t_tape != scope_->outer) {
    t_tape->guard_memory(false);
  }
  t_tape = scope_->outer;
}

} // namespace fsdp

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fsdp::record>());
}
