#include "comm/c10d/job_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/c10d/job_store_server.h"
#include "comm/c10d/sockets.h"
#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

struct ConnectionClosed {};
struct DeadlinePassed {};

/// Frames over a connected socket. Throws the two above.
class FrameSocket {
 public:
  explicit FrameSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  void send(
      const JobStoreFrame& frame,
      const std::string& key,
      const std::string& value) {
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes += key;
    bytes += value;
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = ::send(
          fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno != EINTR) {
        throw ConnectionClosed{};
      }
      sent += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
  }

  /// The next frame with its value (answers have no key).
  std::pair<JobStoreFrame, std::string> receive(Clock::time_point deadline) {
    JobStoreFrame frame;
    for (;;) {
      if (received_.size() >= sizeof(frame)) {
        std::memcpy(&frame, received_.data(), sizeof(frame));
        if (!frame.is_sound()) {
          throw ConnectionClosed{};
        }
        const std::size_t end = sizeof(frame) + frame.value_bytes;
        if (received_.size() >= end) {
          std::string value =
              received_.substr(sizeof(frame), end - sizeof(frame));
          received_.erase(0, end);
          return {frame, std::move(value)};
        }
      }
      read_more(deadline);
    }
  }

 private:
  void read_more(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<Millis>(deadline - Clock::now());
    pollfd polled{fd_.get(), POLLIN, 0};
    const int ready = poll(
        &polled,
        1,
        static_cast<int>(std::clamp<Millis::rep>(left.count(), 0, 1 << 30)));
    if (ready == 0) {
      throw DeadlinePassed{};
    }
    char bytes[4096];
    const ssize_t count =
        ready < 0 ? -1 : recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      throw ConnectionClosed{};
    }
    received_.append(
        bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }

  UniqueFd fd_;
  std::string received_;
};

class JobStore final : public Store {
 public:
  JobStore(
      const JobStoreArgs& args,
      FrameSocket socket,
      std::shared_ptr<JobStoreServer> server)
      : args_(args), server_(std::move(server)), socket_(std::move(socket)) {}

  void set(const std::string& key, std::string value) override {
    call(JobStoreCall::kSet, key, value, args_.timeout, "its own entry");
  }

  std::string get(
      const std::string& key, Millis timeout, std::string_view what) override {
    return call(JobStoreCall::kGet, key, "", timeout, what);
  }

 private:
  std::string call(
      JobStoreCall call,
      const std::string& key,
      const std::string& value,
      Millis timeout,
      std::string_view what) {
    const std::lock_guard lock(mutex_);
    const auto deadline = Clock::now() + timeout;
    JobStoreFrame frame;
    frame.call = call;
    frame.id = ++last_id_;
    frame.key_bytes = static_cast<std::uint32_t>(key.size());
    frame.value_bytes = static_cast<std::uint32_t>(value.size());
    try {
      socket_.send(frame, key, value);
      for (;;) {
        auto [answer, found] = socket_.receive(deadline);
        if (answer.id == frame.id) { // not of a get that was given up
          return found;
        }
      }
    } catch (const DeadlinePassed&) {
      throw TimeoutError(
          rank_prefix(args_.rank) + store_timeout_text(timeout, what));
    } catch (const ConnectionClosed&) {
      throw PeerDiedError(store_lost_text(args_, what));
    }
  }

  const JobStoreArgs args_;
  std::shared_ptr<JobStoreServer> server_; ///< rank 0
  std::mutex mutex_;
  FrameSocket socket_;
  std::uint32_t last_id_ = 0;
};

void say_hello(
    FrameSocket& socket, std::uint32_t generation, Clock::time_point deadline) {
  JobStoreFrame hello;
  hello.id = generation;
  socket.send(hello, "", "");
  if (socket.receive(deadline).first.call != JobStoreCall::kHello) {
    throw ConnectionClosed{};
  }
}

UniqueFd take_listener(const JobStoreArgs& args) {
  if (!args.listen_fd) {
    return listen_on(args.host, args.port, args.rank);
  }
  const int fd = fcntl(*args.listen_fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) {
    throw ConfigError(
        rank_prefix(args.rank) + "the listening socket " +
        std::to_string(*args.listen_fd) + " from the launcher is unusable (" +
        std::strerror(errno) + "); unset FSDP_MASTER_LISTEN_FD");
  }
  return UniqueFd(fd);
}

/// One for each port, as long as a store uses it.
std::shared_ptr<JobStoreServer> server_of_this_process(
    const JobStoreArgs& args) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<JobStoreServer>> by_port;
  const std::lock_guard lock(mutex);
  auto server = by_port[args.port].lock();
  if (server) {
    server->serve_generation(args.generation);
  } else {
    server =
        std::make_shared<JobStoreServer>(take_listener(args), args.generation);
    by_port[args.port] = server;
  }
  return server;
}

FrameSocket reach_server(const JobStoreArgs& args) {
  constexpr Millis kPause{100};
  const auto deadline = Clock::now() + args.timeout;
  for (;;) {
    FrameSocket socket(
        connect_to(args.host, args.port, args.rank, deadline, args.timeout));
    try {
      say_hello(socket, args.generation, deadline);
      return socket;
    } catch (const ConnectionClosed&) {
      // The server of an earlier generation, to be followed by ours.
      std::this_thread::sleep_for(kPause);
    } catch (const DeadlinePassed&) {
    }
    if (Clock::now() >= deadline) {
      throw TimeoutError(
          rank_prefix(args.rank) + "no job store answered at " +
          join_host_port(args.host, args.port) + " within " +
          time_text(args.timeout) +
          ": another program listens there; correct MASTER_ADDR and "
          "MASTER_PORT");
    }
  }
}

} // namespace

std::shared_ptr<Store> connect_job_store(const JobStoreArgs& args) {
  if (!args.serve) {
    return std::make_shared<JobStore>(args, reach_server(args), nullptr);
  }
  auto server = server_of_this_process(args);
  FrameSocket socket(server->connect_locally());
  return std::make_shared<JobStore>(args, std::move(socket), std::move(server));
}

std::string store_lost_text(const JobStoreArgs& args, std::string_view what) {
  return rank_prefix(args.rank) + "lost the job's store at " +
         join_host_port(args.host, args.port) + " while waiting for " +
         std::string(what) +
         ": the process that runs it (rank 0, or torchrun's agent) has ended; "
         "see its last output";
}

} // namespace fsdp
