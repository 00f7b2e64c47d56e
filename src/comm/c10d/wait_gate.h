#pragma once
// Lets other threads end a wait of the worker thread. Gloo can neither poll a
// transfer nor wait for one of several, so that whoever waits for the worker
// wakes it now and then; it then looks at the clock and at the other peers.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/c10d/message_link.h"

namespace fsdp {

class WaitGate {
 public:
  static constexpr std::chrono::milliseconds kPulse{20};

  /// Worker: as Transfer::wait, and false at once after close().
  bool wait(Transfer& transfer) {
    {
      const std::lock_guard lock(mutex_);
      if (is_closed_) {
        return false;
      }
      current_ = &transfer;
    }
    const Reset reset{*this};
    return transfer.wait();
  }

  /// Any thread: a wait under way returns false.
  void pulse() {
    const std::lock_guard lock(mutex_);
    if (current_ != nullptr) {
      current_->interrupt();
    }
  }

  /// Any thread.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = !is_last_;
    if (current_ != nullptr) {
      current_->interrupt();
    }
  }

  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }

  /// Worker: what is left to wait for has a short deadline of its own, and
  /// close() changes nothing any more.
  void open_for_last_words() {
    const std::lock_guard lock(mutex_);
    is_closed_ = false;
    is_last_ = true;
  }

 private:
  struct Reset {
    WaitGate& gate;
    ~Reset() {
      const std::lock_guard lock(gate.mutex_);
      gate.current_ = nullptr;
    }
  };

  mutable std::mutex mutex_;
  Transfer* current_ = nullptr;
  bool is_closed_ = false;
  bool is_last_ = false;
};

/// Pulses while it lives: for waits of the worker that nobody waits for.
class ScopedPulse {
 public:
  explicit ScopedPulse(
      WaitGate& gate, std::chrono::milliseconds period = WaitGate::kPulse)
      : thread_([this, &gate, period] { run(gate, period); }) {}
  ScopedPulse(const ScopedPulse&) = delete;
  ScopedPulse& operator=(const ScopedPulse&) = delete;
  ~ScopedPulse() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    stopped_.notify_one();
    thread_.join();
  }

 private:
  void run(WaitGate& gate, std::chrono::milliseconds period) {
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, period, [this] { return is_over_; })) {
      gate.pulse();
    }
  }

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_over_ = false;
  std::thread thread_;
};

} // namespace fsdp
