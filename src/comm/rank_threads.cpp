#include "comm/rank_threads.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {

namespace {

class FirstFailure {
 public:
  void record(std::exception_ptr exception, bool told_by_peer) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& slot = told_by_peer ? consequence_ : cause_;
    if (!slot) {
      slot = std::move(exception);
    }
  }

  void rethrow() const {
    if (cause_ || consequence_) {
      std::rethrow_exception(cause_ ? cause_ : consequence_);
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_;
  std::exception_ptr consequence_;
};

} // namespace

void run_on_threads(int size, const std::function<void(int rank)>& body) {
  FirstFailure failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const PeerError&) {
        failure.record(std::current_exception(), true);
      } catch (const PeerDiedError&) {
        failure.record(std::current_exception(), true);
      } catch (...) {
        failure.record(std::current_exception(), false);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  failure.rethrow();
}

} // namespace fsdp
