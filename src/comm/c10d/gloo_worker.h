#pragma once
// The thread that carries out a Gloo communicator's calls, in the order issued.
//
// Two sides have their own idea of the epoch. The worker's moves on with the
// exchange that tells of a failure; the caller's when the error is thrown to
// it, or when it fails itself. What was issued in an epoch that is over is not
// carried out: it ends with the error that ended the epoch. A failure of this
// rank goes ahead of calls that are queued (the peers' counterparts of those
// meet it), but not of the call under way, which the peers may be in already.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "comm/c10d/gloo_operation.h"
#include "comm/c10d/peer_exchange.h"
#include "comm/c10d/wait_gate.h"

namespace fsdp {

class GlooWorker {
 public:
  GlooWorker(
      int rank,
      int size,
      std::chrono::milliseconds timeout,
      std::string group_name,
      std::unique_ptr<MessageLink> link);
  GlooWorker(const GlooWorker&) = delete;
  GlooWorker& operator=(const GlooWorker&) = delete;
  ~GlooWorker();

  /// Throws the error of an epoch that ended unnoticed, or why the group is
  /// past use.
  void submit(std::shared_ptr<Operation> operation);
  /// Throws what the operation threw. Returns the time it blocked.
  std::chrono::nanoseconds wait(Operation& operation);
  /// The caller will not wait: from the return of this on its memory is left
  /// alone.
  void abandon(Operation& operation) noexcept;
  void fail(std::string_view what) noexcept;
  /// The caller's.
  std::uint64_t epoch() const;

  /// Ends the call under way and those queued with a CommError, says good-bye
  /// to the peers, and joins the thread. May be called again, by any thread.
  void close() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  std::shared_ptr<Operation> next();
  void carry_out(Operation& operation);
  void perform(Operation& operation, std::uint64_t epoch);
  void end_epoch(Operation& operation, std::exception_ptr error);
  void break_group(Operation& operation, std::exception_ptr error);
  void settle(Operation& operation, std::exception_ptr error);
  void settle_queued_calls(const std::exception_ptr& error);
  std::exception_ptr destroyed_error() const;
  void wait_until_done(Lock& lock, const Operation& operation);

  const int rank_;
  const std::string group_name_;
  const int owner_pid_;
  WaitGate gate_;
  PeerExchange exchange_; ///< the worker's

  mutable std::mutex mutex_;
  std::condition_variable issued_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::uint64_t caller_epoch_ = 0;
  std::uint64_t worker_epoch_ = 0;
  std::exception_ptr epoch_error_; ///< what ended the worker's last epoch
  std::exception_ptr broken_;      ///< why the group is past use
  bool is_closing_ = false;

  std::mutex close_mutex_;
  std::thread thread_;
};

} // namespace fsdp
