#pragma once
// Gloo and libuv write to sockets without MSG_NOSIGNAL: a peer that has gone
// would end the process. Threads that write, and those that their creators
// start meanwhile, block the signal; the process's own setting stays the
// user's.

#include <csignal>
#include <ctime>

namespace fsdp {

/// Blocks SIGPIPE in this thread for its life, or until the thread ends.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;
  ~SigpipeBlock() {
    if (!was_pending_) {
      const timespec at_once{};
      while (sigtimedwait(&sigpipe_, nullptr, &at_once) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_;
};

} // namespace fsdp
