#pragma once
// The few places where the runtime reaches below LibTorch's public autograd:
// everything that changes between LibTorch versions is in the .cpp.

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace torch::autograd {
struct Node;
}

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

/// Whether the node is a PinnedAccumulator's.
bool is_pinned_accumulator(torch::autograd::Node& node);

/// The text of the exception being handled, without LibTorch's backtrace.
std::string current_exception_text() noexcept;

} // namespace fsdp
