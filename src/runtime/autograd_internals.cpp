#include "runtime/autograd_internals.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fsdp/error.h"

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

thread_local std::vector<std::weak_ptr<BackwardListener>> listeners_of_thread;

std::vector<std::shared_ptr<BackwardListener>> living_listeners() {
  std::vector<std::shared_ptr<BackwardListener>> living;
  std::erase_if(listeners_of_thread, [&living](const auto& weak) {
    auto listener = weak.lock();
    if (listener) {
      living.push_back(std::move(listener));
      return false;
    }
    return true;
  });
  return living;
}

bool is_pinned_accumulator(autograd::Node& node) {
  const auto& hooks = node.pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const CallBefore*>(hook.get()) != nullptr;
  });
}

// What is differentiated by name gets no reduction.
void refuse_sharded_params(const autograd::edge_list& outputs) {
  for (const auto& edge : outputs) {
    if (edge.function && is_pinned_accumulator(*edge.function)) {
      throw UsageError(
          "autograd::grad() and backward(inputs) cannot give the gradient of a "
          "sharded parameter; call backward() without inputs and read .grad");
    }
  }
}

// LibTorch's engine, with word of the beginning and end of each backward: a
// queued engine callback would not run after an exception, and runs too early
// when a nested backward (reentrant checkpoint) queued it.
class ListeningEngine final : public autograd::Engine {
 public:
  ~ListeningEngine() override { stop(); }

  autograd::variable_list execute(
      const autograd::edge_list& roots,
      const autograd::variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const autograd::edge_list& outputs) override {
    refuse_sharded_params(outputs);
    if (in_backward()) {
      return Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    try {
      auto result = Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
      for (const auto& listener : living_listeners()) {
        listener->backward_ended();
      }
      return result;
    } catch (...) {
      for (const auto& listener : living_listeners()) {
        listener->backward_failed();
      }
      throw;
    }
  }
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

autograd::Engine& listening_engine() {
  // Never destroyed: device threads may outlive main, as in LibTorch itself.
  static auto* engine = new ListeningEngine();
  return *engine;
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

bool in_backward() {
  return autograd::get_current_graph_task_id() != -1;
}

void listen_to_backward(const std::shared_ptr<BackwardListener>& listener) {
  autograd::Engine& installed = autograd::Engine::get_default_engine();
  if (&installed == &autograd::Engine::get_base_engine()) {
    autograd::set_default_engine_stub(&listening_engine);
  } else if (&installed != &listening_engine()) {
    throw UsageError(
        "another autograd engine is installed (a Python interpreter in this "
        "process?); libfsdp needs LibTorch's own");
  }
  for (const auto& known : living_listeners()) {
    if (known == listener) {
      return;
    }
  }
  listeners_of_thread.push_back(listener);
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
