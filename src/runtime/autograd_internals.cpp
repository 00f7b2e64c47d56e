#include "runtime/autograd_internals.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace fsdp {

namespace autograd = torch::autograd;

namespace {

class CallBefore final : public autograd::FunctionPreHook {
 public:
  explicit CallBefore(std::function<void()> callback)
      : callback_(std::move(callback)) {}
  autograd::variable_list operator()(
      const autograd::variable_list& grads) override {
    callback_();
    return grads;
  }

 private:
  std::function<void()> callback_;
};

class CallAfter final : public autograd::FunctionPostHook {
 public:
  explicit CallAfter(std::function<void()> callback)
      : callback_(std::move(callback)) {}
  autograd::variable_list operator()(
      const autograd::variable_list& outputs,
      const autograd::variable_list&) override {
    callback_();
    return outputs;
  }

 private:
  std::function<void()> callback_;
};

// LibTorch 2.13 counts nodes itself, earlier ones with std::shared_ptr.
template <typename... T>
auto weak(const c10::intrusive_ptr<T...>& node) {
  return c10::weak_intrusive_ptr<T...>(node);
}
template <typename T>
auto weak(const std::shared_ptr<T>& node) {
  return std::weak_ptr<T>(node);
}

} // namespace

struct PinnedAccumulator::Impl {
  decltype(autograd::impl::grad_accumulator(std::declval<at::Tensor>())) node;
};

PinnedAccumulator::PinnedAccumulator(
    const at::Tensor& parameter,
    std::function<void()> before,
    std::function<void()> after)
    : impl_(std::make_unique<Impl>()) {
  install(parameter); // none yet: makes place for a new one
  impl_->node = autograd::impl::grad_accumulator(parameter);
  impl_->node->add_pre_hook(std::make_unique<CallBefore>(std::move(before)));
  impl_->node->add_post_hook(std::make_unique<CallAfter>(std::move(after)));
}

PinnedAccumulator::~PinnedAccumulator() = default;

void PinnedAccumulator::install(const at::Tensor& parameter) const {
  autograd::impl::set_grad_accumulator(parameter, weak(impl_->node));
}

void become(const at::Tensor& target, const at::Tensor& source) {
  target.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
}

bool is_pinned_accumulator(torch::autograd::Node& node) {
  const auto& hooks = node.pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const CallBefore*>(hook.get()) != nullptr;
  });
}

std::string current_exception_text() noexcept {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

} // namespace fsdp
