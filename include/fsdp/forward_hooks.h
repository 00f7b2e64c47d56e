#pragma once
// What happens around a forward, between fsdp/hooked.h (which gets in between)
// and the runtime (which gathers and releases there).

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/export.h"
#include "fsdp/for_each_tensor.h"

namespace fsdp::detail {

/// What happens around a hooked forward; the runtime's Unit implements it.
class FSDP_API ForwardHooks {
 public:
  virtual ~ForwardHooks() = default;
  /// `inputs` may be replaced (cast to the compute dtype); `fixed` are the
  /// caller's own tensors and are not.
  virtual void pre_forward(
      const std::vector<at::Tensor*>& inputs,
      const std::vector<at::Tensor*>& fixed) = 0;
  virtual void post_forward(const std::vector<at::Tensor*>& outputs) = 0;
  /// Called inside the catch block of an exception thrown by either of the
  /// above or by the forward itself.
  virtual void forward_failed() noexcept = 0;
};

/// Mixed into every hooked module.
class FSDP_API HookedBase {
 public:
  virtual ~HookedBase() = default;
  const std::shared_ptr<ForwardHooks>& fsdp_hooks() const { return hooks_; }
  void set_fsdp_hooks(std::shared_ptr<ForwardHooks> hooks) {
    hooks_ = std::move(hooks);
  }
  /// The user's name of the type, for messages.
  virtual std::string fsdp_type_name() const = 0;

 private:
  std::shared_ptr<ForwardHooks> hooks_;
};

/// Runs `call` between the hooks. `inputs` and `fixed` as in ForwardHooks.
template <typename Call>
std::invoke_result_t<Call> run_between_hooks(
    ForwardHooks& hooks,
    const std::vector<at::Tensor*>& inputs,
    const std::vector<at::Tensor*>& fixed,
    Call&& call) {
  using Result = std::invoke_result_t<Call>;
  std::vector<at::Tensor*> outputs;
  try {
    hooks.pre_forward(inputs, fixed);
    if constexpr (std::is_void_v<Result>) {
      call();
      hooks.post_forward(fixed);
    } else {
      static_assert(
          KnowsTensors<Result>::value,
          "fsdp cannot find the tensors in this forward's return type: write "
          "fsdp_for_each_tensor for it (fsdp/for_each_tensor.h)");
      Result result = call();
      for_each_tensor(
          const_cast<std::remove_cvref_t<Result>&>(result),
          [&outputs](at::Tensor& tensor) { outputs.push_back(&tensor); });
      hooks.post_forward(outputs);
      return result;
    }
  } catch (...) {
    hooks.forward_failed();
    throw;
  }
}

/// How an argument waits between the hooks: lvalue references and what cannot
/// be copied stay the caller's, everything else is a (cheap) copy that the
/// hooks may change.
template <typename A>
using StoredArgument = std::conditional_t<
    (std::is_lvalue_reference_v<A> &&
     (!std::is_const_v<std::remove_reference_t<A>> || !KnowsTensors<A>::value ||
      !std::is_copy_constructible_v<std::remove_cvref_t<A>>)),
    A,
    std::remove_cvref_t<A>>;

template <typename A, typename Stored>
void collect_argument(
    Stored& stored,
    std::vector<at::Tensor*>& inputs,
    std::vector<at::Tensor*>& fixed) {
  if constexpr (!std::is_const_v<std::remove_reference_t<Stored>>) {
    auto& list = std::is_lvalue_reference_v<StoredArgument<A>> ? fixed : inputs;
    for_each_tensor(
        stored, [&list](at::Tensor& tensor) { list.push_back(&tensor); });
  }
}

} // namespace fsdp::detail
