#pragma once
// Sleeping on a word of shared memory. Not std::atomic::wait, whose futex is
// private to a process.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace fsdp::host {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

/// Returns when woken, after `timeout`, at once if `word` is not `seen`, or for
/// no reason.
inline void futex_wait(
    std::atomic<std::uint32_t>& word,
    std::uint32_t seen,
    std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const timespec relative{
      static_cast<time_t>(seconds.count()),
      static_cast<long>((timeout - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

/// Async-signal-safe.
inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace fsdp::host
