#include "comm/c10d/agent_store.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/c10d/sockets.h"
#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

class AgentStore final : public Store {
  template <typename Function>
  auto guarded(std::string_view what, Function function) {
    const std::lock_guard lock(mutex_);
    try {
      return function();
    } catch (const std::exception&) { // text with a stack trace
      throw PeerDiedError(store_lost_text(args_, what));
    }
  }

 public:
  AgentStore(c10::intrusive_ptr<c10d::TCPStore> store, const JobStoreArgs& args)
      : store_(std::move(store)), args_(args) {}

  void set(const std::string& key, std::string value) override {
    guarded("its own entry", [&] {
      store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::string get(
      const std::string& key, Millis timeout, std::string_view what) override {
    // Asked again and again: LibTorch's wait writes warnings to stderr when it
    // ends in vain.
    const auto deadline = Clock::now() + timeout;
    auto pause = Millis(1);
    while (!guarded(what, [&] { return store_->check({key}); })) {
      if (Clock::now() >= deadline) {
        throw TimeoutError(
            rank_prefix(args_.rank) + store_timeout_text(timeout, what));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, Millis(50));
    }
    const auto value = guarded(what, [&] { return store_->get(key); });
    return {value.begin(), value.end()};
  }

 private:
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  const JobStoreArgs args_;
};

} // namespace

std::shared_ptr<Store> connect_agent_store(const JobStoreArgs& args) {
  const auto deadline = Clock::now() + args.timeout;
  // Waiting for the agent in our words: LibTorch's client warns at each try.
  connect_to(args.host, args.port, args.rank, deadline, args.timeout);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(args.port);
  options.waitWorkers = false;
  options.timeout = std::max(
      std::chrono::duration_cast<Millis>(deadline - Clock::now()),
      Millis(1000));
  try {
    return std::make_shared<AgentStore>(
        c10::make_intrusive<c10d::TCPStore>(args.host, options), args);
  } catch (const std::exception&) {
    throw TimeoutError(
        rank_prefix(args.rank) + "torchrun's store did not answer at " +
        join_host_port(args.host, args.port) + " within " +
        time_text(args.timeout) + "; see the output of torchrun");
  }
}

} // namespace fsdp
