#pragma once
// Borrowing the process's random generator, which ranks that are threads share.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace fsdp {

/// While it lives, no other one does; afterwards the generator of random
/// numbers on the CPU is as it was before. Nothing collective meanwhile.
class BorrowedRandomState {
 public:
  BorrowedRandomState() : lock_(mutex()), generator_(generator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~BorrowedRandomState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  BorrowedRandomState(const BorrowedRandomState&) = delete;
  BorrowedRandomState& operator=(const BorrowedRandomState&) = delete;

  void seed(std::uint64_t seed) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_current_seed(seed);
  }

  static const at::Generator& generator() {
    return at::detail::getDefaultCPUGenerator();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one_at_a_time;
    return one_at_a_time;
  }

  std::lock_guard<std::mutex> lock_;
  at::Generator generator_;
  at::Tensor state_;
};

} // namespace fsdp
