#pragma once
// The few places where the runtime reaches below LibTorch's public autograd:
// everything that changes between LibTorch versions is in the .cpp.

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace fsdp {

/// An AccumulateGrad node of a parameter that is kept alive, so that every
/// graph uses it whatever the parameter's TensorImpl shows in between, with a
/// callback before and after it runs. A gradient of another shape than the
/// parameter had when the node was made is rejected by autograd.
class PinnedAccumulator {
 public:
  /// `parameter` is a leaf that requires grad. Graphs made from now on use this
  /// node. `before` runs when all its gradients of a backward have come, before
  /// they are added to .grad; `after` once they are (.grad may be undefined).
  PinnedAccumulator(
      const at::Tensor& parameter,
      std::function<void()> before,
      std::function<void()> after);
  ~PinnedAccumulator();

  /// Graphs of `parameter` made from now on use this node again.
  void install(const at::Tensor& parameter) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Makes `target` another view of `source`'s data, dtype and sizes, keeping its
/// identity: version counter, grad, accumulator and hooks.
void become(const at::Tensor& target, const at::Tensor& source);

/// True inside a hook or a recomputation of a running backward.
bool in_backward();

/// What the autograd engine tells about each outermost backward() of the
/// calling thread. Called on the thread that called backward().
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// All gradients have been computed; backward() returns after this.
  virtual void backward_ended() = 0;
  /// Called inside the catch block of what backward() throws.
  virtual void backward_failed() noexcept = 0;
};

/// Tells `listener` of the backwards that the calling thread runs, the present
/// one included, until it dies. Throws UsageError if another autograd engine
/// (Python's) is installed.
void listen_to_backward(const std::shared_ptr<BackwardListener>& listener);

/// The text of the exception being handled, without LibTorch's backtrace.
std::string current_exception_text() noexcept;

} // namespace fsdp
