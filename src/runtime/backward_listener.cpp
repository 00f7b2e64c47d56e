#include "runtime/backward_listener.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "runtime/autograd_internals.h"

namespace fsdp {

namespace autograd = torch::autograd;

namespace {

using Listeners = std::vector<std::shared_ptr<BackwardListener>>;

/// LibTorch's graph task of the calling thread, as a number from 1; 0: none.
std::uint64_t current_task() {
  return static_cast<std::uint64_t>(autograd::get_current_graph_task_id() + 1);
}

/// The graph tasks that run now, in the whole process. Thread-safe.
class RunningTasks {
 public:
  /// `parent`: the task in whose hook it was started, or 0.
  void begin(std::uint64_t task, std::uint64_t parent) {
    const std::lock_guard lock(mutex_);
    tasks_[task] = {parent == 0 ? task : outermost(parent), {}};
  }

  std::uint64_t outermost_of(std::uint64_t task) {
    const std::lock_guard lock(mutex_);
    return outermost(task);
  }

  void join(
      std::uint64_t task, const std::shared_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mutex_);
    tasks_[task].listeners.push_back(listener);
  }

  Listeners listeners_of(std::uint64_t task) {
    const std::lock_guard lock(mutex_);
    Listeners living;
    const auto found = tasks_.find(task);
    if (found != tasks_.end()) {
      for (const auto& weak : found->second.listeners) {
        if (auto listener = weak.lock()) {
          living.push_back(std::move(listener));
        }
      }
    }
    return living;
  }

  void end(std::uint64_t task) {
    const std::lock_guard lock(mutex_);
    tasks_.erase(task);
  }

 private:
  struct Task {
    std::uint64_t outermost = 0;
    std::vector<std::weak_ptr<BackwardListener>> listeners;
  };

  std::uint64_t outermost(std::uint64_t task) const {
    const auto found = tasks_.find(task);
    return found == tasks_.end() ? task : found->second.outermost;
  }

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Task> tasks_;
};

RunningTasks& running_tasks() {
  // Never destroyed: device threads may outlive main.
  static auto* tasks = new RunningTasks();
  return *tasks;
}

thread_local std::vector<std::weak_ptr<BackwardListener>> listeners_of_thread;

Listeners living_listeners_of_thread() {
  Listeners living;
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

/// One execute() of the engine on this thread, and the task that it begins.
class Call {
 public:
  Call() : around_(std::exchange(innermost, this)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    innermost = around_;
    if (task_ != 0) {
      running_tasks().end(task_);
    }
  }

  static void begin_task(std::uint64_t task) {
    running_tasks().begin(task, current_task());
    if (innermost != nullptr) {
      innermost->task_ = task;
    }
  }

  std::uint64_t task() const { return task_; }

  Listeners listeners() const {
    Listeners all = living_listeners_of_thread();
    for (auto& listener : running_tasks().listeners_of(task_)) {
      if (std::ranges::find(all, listener) == all.end()) {
        all.push_back(std::move(listener));
      }
    }
    return all;
  }

 private:
  static thread_local Call* innermost;
  Call* around_;
  std::uint64_t task_ = 0;
};

thread_local Call* Call::innermost = nullptr;

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
    const Call call;
    if (in_backward()) {
      return Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    try {
      auto result = Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
      for (const auto& listener : call.listeners()) {
        listener->backward_ended(call.task());
      }
      return result;
    } catch (...) {
      for (const auto& listener : call.listeners()) {
        listener->backward_failed(call.task());
      }
      throw;
    }
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<autograd::GraphTask>& task,
      decltype(autograd::Edge::function) root,
      autograd::InputBuffer&& inputs) override {
    Call::begin_task(task->id_ + 1);
    return Engine::execute_with_graph_task(
        task, std::move(root), std::move(inputs));
  }
};

autograd::Engine& listening_engine() {
  // Never destroyed, as LibTorch's own.
  static auto* engine = new ListeningEngine();
  return *engine;
}

} // namespace

std::uint64_t backward_number() {
  const std::uint64_t task = current_task();
  return task == 0 ? 0 : running_tasks().outermost_of(task);
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
  const Listeners known = living_listeners_of_thread();
  if (std::ranges::find(known, listener) == known.end()) {
    listeners_of_thread.push_back(listener);
  }
}

void join_backward(const std::shared_ptr<BackwardListener>& listener) {
  running_tasks().join(backward_number(), listener);
}

} // namespace fsdp
