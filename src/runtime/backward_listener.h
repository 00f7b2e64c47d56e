#pragma once
// Word of the end of each backward(). A queued callback of LibTorch's engine
// would not run after an exception, and runs too early when a nested backward
// (a reentrant checkpoint's) queued it; so the engine itself is replaced by one
// that tells.
//
// A backward has a number. One that a hook starts belongs to the one around it
// and has that one's. Hooks may run on other threads than the caller of
// backward(), as those of an accelerator's operations do.

#include <cstdint>
#include <memory>

namespace fsdp {

/// The number of the backward that the calling hook belongs to; 0: none, the
/// calling thread is in no backward.
std::uint64_t backward_number();

/// True inside a hook or a recomputation of a running backward.
inline bool in_backward() {
  return backward_number() != 0;
}

/// Called on the thread that called backward(), once for the outermost one.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// All gradients have been computed; backward() returns after this.
  virtual void backward_ended(std::uint64_t number) = 0;
  /// Called inside the catch block of what backward() throws. `number` is 0 if
  /// nothing ran.
  virtual void backward_failed(std::uint64_t number) noexcept = 0;
};

/// Tells `listener` of the backwards that the calling thread calls, until it
/// dies. Throws UsageError if another autograd engine (Python's) is installed.
void listen_to_backward(const std::shared_ptr<BackwardListener>& listener);

/// Tells `listener` of the end of the backward that the calling hook belongs
/// to, whichever thread called it.
void join_backward(const std::shared_ptr<BackwardListener>& listener);

} // namespace fsdp
