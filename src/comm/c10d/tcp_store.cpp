#include "comm/c10d/tcp_store.h"

#include <fcntl.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/c10d/sigpipe.h"
#include "comm/c10d/sockets.h"
#include "comm/c10d/text.h"
#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

class C10dStore final : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::TCPStore> store, int rank)
      : store_(std::move(store)), rank_(rank) {}

  void set(const std::string& key, std::string value) override {
    const std::lock_guard lock(mutex_);
    call("its own entry", [&] {
      store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::string get(
      const std::string& key, Millis timeout, std::string_view what) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint8_t> value;
    call(what, [&] {
      // The server's answer to a wait that has ended meanwhile is dropped, so
      // that a wait of no time at all still sees a key that is there.
      if (!store_->check({key})) {
        wait_for(key, timeout, what);
      }
      value = store_->get(key);
    });
    return {value.begin(), value.end()};
  }

 private:
  void wait_for(const std::string& key, Millis timeout, std::string_view what) {
    const auto start = Clock::now();
    try {
      store_->wait({key}, std::max(timeout, Millis(1)));
    } catch (const std::exception&) {
      // The same type tells of a lost server; only the clock knows.
      if (Clock::now() - start < timeout) {
        throw;
      }
      throw TimeoutError(
          rank_prefix(rank_) + store_timeout_text(timeout, what));
    }
  }

  template <typename Function>
  void call(std::string_view what, Function function) {
    try {
      function();
    } catch (const Error&) {
      throw;
    } catch (const std::exception&) {
      throw PeerDiedError(
          rank_prefix(rank_) + "lost the job's store at " + store_->getHost() +
          ":" + std::to_string(store_->getPort()) + " while asking for " +
          std::string(what) + ": the process that runs it (rank 0) has ended");
    }
  }

  std::mutex mutex_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  int rank_;
};

int take_listener(const TcpStoreArgs& args) {
  if (!args.listen_fd) {
    return listen_on(args.host, args.port, args.rank).release();
  }
  const int fd = fcntl(*args.listen_fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    throw ConfigError(
        rank_prefix(args.rank) + "the listening socket " +
        std::to_string(*args.listen_fd) + " from the launcher is unusable (" +
        std::strerror(errno) + "); unset FSDP_MASTER_LISTEN_FD");
  }
  return fd;
}

} // namespace

std::shared_ptr<Store> connect_tcp_store(const TcpStoreArgs& args) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(args.port);
  options.isServer = args.serve;
  options.waitWorkers = false;
  const auto start = Clock::now();
  if (args.serve) {
    options.masterListenFd = take_listener(args);
  } else {
    wait_for_listener(args.host, args.port, args.rank, args.timeout);
  }
  const auto spent = std::chrono::duration_cast<Millis>(Clock::now() - start);
  options.timeout = std::max(args.timeout - spent, Millis(1000));
  const SigpipeBlock for_thread_of_server;
  try {
    return std::make_shared<C10dStore>(
        c10::make_intrusive<c10d::TCPStore>(args.host, options), args.rank);
  } catch (const std::exception&) {
    throw TimeoutError(
        rank_prefix(args.rank) + "no job store answered at " + args.host + ":" +
        std::to_string(args.port) + " within " + time_text(args.timeout) +
        (args.serve ? ": the port does not lead to this process"
                    : ": another program may listen there") +
        "; correct MASTER_ADDR and MASTER_PORT");
  }
}

} // namespace fsdp
