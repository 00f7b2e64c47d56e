#include "comm/c10d/gloo_worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "comm/c10d/sigpipe.h"
#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kFailureBytes = 1000;

/// A program may end while workers run: by exit(), or with a group in static
/// storage. They are closed before the statics of LibTorch, which they use, are
/// destroyed.
struct LiveWorkers {
  std::mutex mutex;
  std::set<GlooWorker*> workers;
};

LiveWorkers& live_workers() {
  // Never destroyed: a worker in static storage may outlive everything.
  static auto* const live = new LiveWorkers;
  return *live;
}

void close_live_workers() {
  LiveWorkers& live = live_workers();
  const std::lock_guard lock(live.mutex);
  for (GlooWorker* worker : live.workers) {
    worker->close();
  }
}

} // namespace

GlooWorker::GlooWorker(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    std::string group_name,
    std::unique_ptr<MessageLink> link)
    : rank_(rank),
      group_name_(std::move(group_name)),
      owner_pid_(getpid()),
      exchange_(rank, size, timeout, std::move(link), gate_),
      thread_([this] { run(); }) {
  static const int registered = std::atexit(close_live_workers);
  (void)registered;
  LiveWorkers& live = live_workers();
  const std::lock_guard lock(live.mutex);
  live.workers.insert(this);
}

GlooWorker::~GlooWorker() {
  {
    LiveWorkers& live = live_workers();
    const std::lock_guard lock(live.mutex);
    live.workers.erase(this);
  }
  close();
}

void GlooWorker::submit(std::shared_ptr<Operation> operation) {
  {
    const Lock lock(mutex_);
    if (broken_ || caller_epoch_ < worker_epoch_) {
      caller_epoch_ = std::max(caller_epoch_, worker_epoch_);
      std::rethrow_exception(broken_ ? broken_ : epoch_error_);
    }
    operation->epoch = caller_epoch_;
    queue_.push_back(std::move(operation));
  }
  issued_.notify_one();
}

void GlooWorker::wait_until_done(Lock& lock, const Operation& operation) {
  while (!done_.wait_for(lock, WaitGate::kPulse, [&] {
    return operation.state == Operation::State::kDone;
  })) {
    lock.unlock();
    gate_.pulse();
    lock.lock();
  }
}

std::chrono::nanoseconds GlooWorker::wait(Operation& operation) {
  const auto start = std::chrono::steady_clock::now();
  Lock lock(mutex_);
  wait_until_done(lock, operation);
  if (operation.error) {
    caller_epoch_ = std::max(caller_epoch_, operation.epoch_after);
    std::rethrow_exception(operation.error);
  }
  return std::chrono::steady_clock::now() - start;
}

void GlooWorker::abandon(Operation& operation) noexcept {
  Lock lock(mutex_);
  if (operation.state == Operation::State::kQueued) {
    try {
      operation.own_memory.reset(
          new std::byte[operation.input_bytes + operation.output_bytes]);
      std::byte* memory = operation.own_memory.get();
      if (operation.input_bytes > 0) {
        std::memcpy(memory, operation.input, operation.input_bytes);
      }
      // What is in place is an input, too.
      if (operation.output_bytes > 0) {
        std::memcpy(
            memory + operation.input_bytes,
            operation.output,
            operation.output_bytes);
      }
      operation.input = memory;
      operation.output = memory + operation.input_bytes;
      return;
    } catch (const std::bad_alloc&) {
      // Then it must be waited for.
    }
  }
  wait_until_done(lock, operation);
}

void GlooWorker::fail(std::string_view what) noexcept {
  try {
    auto operation = std::make_shared<Operation>();
    operation->is_failure = true;
    operation->failure_line = failure_line(rank_, what, kFailureBytes);
    operation->failed_at = std::chrono::system_clock::now();
    const auto error = std::make_exception_ptr(PeerError(
        rank_prefix(rank_) + "this rank failed before the call was made: " +
        operation->failure_line));
    const Lock lock(mutex_);
    if (broken_ || caller_epoch_ < worker_epoch_) {
      // A peer was first, and its text is everybody's.
      caller_epoch_ = std::max(caller_epoch_, worker_epoch_);
      return;
    }
    operation->epoch = caller_epoch_++;
    settle_queued_calls(error);
    queue_.push_back(std::move(operation));
  } catch (...) {
    // Out of memory: the peers see the connection end, or time out.
  }
  issued_.notify_one();
  done_.notify_all();
}

std::uint64_t GlooWorker::epoch() const {
  const Lock lock(mutex_);
  return caller_epoch_;
}

void GlooWorker::close() noexcept {
  const std::lock_guard closing(close_mutex_);
  if (!thread_.joinable()) {
    return;
  }
  if (getpid() != owner_pid_) {
    thread_.detach(); // a child forked by the user is not the rank
    return;
  }
  {
    const Lock lock(mutex_);
    is_closing_ = true;
  }
  gate_.close();
  issued_.notify_one();
  thread_.join();
}

void GlooWorker::run() {
  const SigpipeBlock block;
  while (const auto operation = next()) {
    carry_out(*operation);
  }
  std::exception_ptr error;
  {
    const Lock lock(mutex_);
    error = broken_;
    if (!broken_) {
      broken_ = std::make_exception_ptr(CommError(
          rank_prefix(rank_) + "group '" + group_name_ +
          "' is closed: the program is ending"));
    }
    settle_queued_calls(broken_);
  }
  done_.notify_all();
  exchange_.leave(error);
}

/// Null once the worker shall end. A failure is told to the peers even then.
std::shared_ptr<Operation> GlooWorker::next() {
  Lock lock(mutex_);
  issued_.wait(lock, [&] { return is_closing_ || broken_ || !queue_.empty(); });
  if (is_closing_) {
    settle_queued_calls(destroyed_error());
    done_.notify_all();
  }
  if (broken_ || queue_.empty()) {
    return nullptr;
  }
  auto operation = std::move(queue_.front());
  queue_.pop_front();
  return operation;
}

void GlooWorker::carry_out(Operation& operation) {
  std::uint64_t epoch = 0;
  {
    const Lock lock(mutex_);
    epoch = worker_epoch_;
  }
  try {
    if (operation.is_failure) {
      exchange_.announce_failure(
          operation.failure_line, operation.failed_at, epoch);
      end_epoch(operation, nullptr);
      return;
    }
    perform(operation, epoch);
    const Lock lock(mutex_);
    settle(operation, nullptr);
  } catch (const EpochEnded& ended) {
    end_epoch(operation, ended.error);
  } catch (const GateClosed&) {
    const Lock lock(mutex_);
    settle(operation, destroyed_error());
  } catch (...) {
    break_group(operation, std::current_exception());
  }
  done_.notify_all();
}

void GlooWorker::perform(Operation& operation, std::uint64_t epoch) {
  exchange_.begin_call([&] { return decode(operation.request).describe(); });
  exchange_.meet(operation.request, epoch);
  {
    const Lock lock(mutex_);
    operation.state = Operation::State::kMoving;
  }
  if (!operation.has_data) {
    return;
  }
  try {
    move_data(operation, exchange_);
  } catch (...) {
    exchange_.give_up_data(); // before anybody learns that the call is over
    throw;
  }
}

void GlooWorker::end_epoch(Operation& operation, std::exception_ptr error) {
  const Lock lock(mutex_);
  epoch_error_ = error;
  ++worker_epoch_;
  settle(operation, error);
  std::erase_if(queue_, [&](const auto& queued) {
    const bool is_over = queued->epoch < worker_epoch_;
    if (is_over) {
      settle(*queued, error);
    }
    return is_over;
  });
}

void GlooWorker::break_group(Operation& operation, std::exception_ptr error) {
  const Lock lock(mutex_);
  broken_ = error;
  ++worker_epoch_;
  settle(operation, error);
  settle_queued_calls(error);
}

/// With the lock held, as what follows.
void GlooWorker::settle(Operation& operation, std::exception_ptr error) {
  operation.error = std::move(error);
  operation.epoch_after = worker_epoch_;
  operation.state = Operation::State::kDone;
}

void GlooWorker::settle_queued_calls(const std::exception_ptr& error) {
  std::erase_if(queue_, [&](const auto& queued) {
    if (!queued->is_failure) {
      settle(*queued, error);
    }
    return !queued->is_failure;
  });
}

std::exception_ptr GlooWorker::destroyed_error() const {
  return std::make_exception_ptr(CommError(
      rank_prefix(rank_) + "group '" + group_name_ +
      "' was destroyed before the call was over"));
}

} // namespace fsdp
