#include "comm/c10d/job_store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {

namespace {

[[noreturn]] void throw_cannot_open() {
  throw CommError(
      std::string("the job's store cannot be opened (") + std::strerror(errno) +
      "); raise the limit of open files");
}

} // namespace

JobStoreServer::JobStoreServer(UniqueFd listener, std::uint32_t generation)
    : listener_(std::move(listener)), generation_(generation) {
  int wake[2];
  if (pipe2(wake, O_CLOEXEC) != 0) {
    throw_cannot_open();
  }
  wake_read_ = UniqueFd(wake[0]);
  wake_write_ = UniqueFd(wake[1]);
  fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  thread_ = std::thread([this] { run(); });
}

JobStoreServer::~JobStoreServer() {
  wake_write_ = UniqueFd();
  thread_.join();
}

UniqueFd JobStoreServer::connect_locally() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_cannot_open();
  }
  UniqueFd ours(ends[0]);
  {
    const std::lock_guard lock(mutex_);
    arriving_.emplace_back(ends[1]);
  }
  const char wake = 0;
  if (write(wake_write_.get(), &wake, 1) != 1) {
    throw_cannot_open();
  }
  return ours;
}

void JobStoreServer::serve_generation(std::uint32_t generation) {
  generation_ = generation;
}

/// After the pipe woke the thread.
bool JobStoreServer::has_ended() {
  char wake = 0;
  if (read(wake_read_.get(), &wake, 1) == 0) {
    return true;
  }
  const std::lock_guard lock(mutex_);
  for (UniqueFd& fd : arriving_) {
    add_client(std::move(fd));
  }
  arriving_.clear();
  return false;
}

void JobStoreServer::run() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.assign(
        {{wake_read_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const auto& client : clients_) {
      const int events = client->to_send.empty() ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({client->fd.get(), static_cast<short>(events), 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0) {
      continue; // EINTR
    }
    if (polled[0].revents != 0 && has_ended()) {
      return;
    }
    std::vector<std::shared_ptr<Client>> kept;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      const auto& client = clients_[i];
      const bool is_new = i + 2 >= polled.size();
      const short events = is_new ? short{0} : polled[i + 2].revents;
      if ((events == 0 || (events & POLLOUT) != 0 || read_from(client)) &&
          write_to(*client)) {
        kept.push_back(client);
      }
    }
    clients_ = std::move(kept);
    if (polled[1].revents != 0) {
      accept_client();
    }
  }
}

void JobStoreServer::accept_client() {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd) {
    add_client(std::move(fd));
  }
}

void JobStoreServer::add_client(UniqueFd fd) {
  auto client = std::make_shared<Client>();
  client->fd = std::move(fd);
  clients_.push_back(std::move(client));
}

bool JobStoreServer::read_from(const std::shared_ptr<Client>& client) {
  char bytes[4096];
  const ssize_t count =
      recv(client->fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  client->received.append(bytes, static_cast<std::size_t>(count));
  return count > 0 && answer_frames(client);
}

/// False if the client speaks another language, or comes too early.
bool JobStoreServer::answer_frames(const std::shared_ptr<Client>& client) {
  std::string& received = client->received;
  JobStoreFrame frame;
  while (received.size() >= sizeof(frame)) {
    std::memcpy(&frame, received.data(), sizeof(frame));
    if (!frame.is_sound()) {
      return false;
    }
    const std::size_t end = sizeof(frame) + frame.key_bytes + frame.value_bytes;
    if (received.size() < end) {
      return true;
    }
    std::string key = received.substr(sizeof(frame), frame.key_bytes);
    std::string value =
        received.substr(sizeof(frame) + frame.key_bytes, frame.value_bytes);
    received.erase(0, end);
    if (!answer(client, frame, std::move(key), std::move(value))) {
      return false;
    }
  }
  return true;
}

bool JobStoreServer::answer(
    const std::shared_ptr<Client>& client,
    const JobStoreFrame& request,
    std::string key,
    std::string value) {
  switch (request.call) {
    case JobStoreCall::kHello:
      reply(*client, JobStoreCall::kHello, request.id, "");
      return request.id <= generation_;
    case JobStoreCall::kSet: {
      reply(*client, JobStoreCall::kDone, request.id, "");
      const auto [begin, end] = waiters_.equal_range(key);
      for (auto it = begin; it != end; ++it) {
        if (const auto waiting = it->second.client.lock()) {
          reply(*waiting, JobStoreCall::kDone, it->second.id, value);
        }
      }
      waiters_.erase(begin, end);
      values_[std::move(key)] = std::move(value);
      return true;
    }
    case JobStoreCall::kGet: {
      const auto found = values_.find(key);
      if (found != values_.end()) {
        reply(*client, JobStoreCall::kDone, request.id, found->second);
      } else {
        waiters_.emplace(std::move(key), Waiter{client, request.id});
      }
      return true;
    }
    case JobStoreCall::kDone:
      return true;
  }
  return true;
}

/// Sent when the poll loop comes to it.
void JobStoreServer::reply(
    Client& client,
    JobStoreCall call,
    std::uint32_t id,
    const std::string& value) {
  JobStoreFrame frame;
  frame.call = call;
  frame.id = id;
  frame.value_bytes = static_cast<std::uint32_t>(value.size());
  client.to_send.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  client.to_send += value;
}

bool JobStoreServer::write_to(Client& client) {
  if (client.to_send.empty()) {
    return true;
  }
  const ssize_t count = ::send(
      client.fd.get(),
      client.to_send.data(),
      client.to_send.size(),
      MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  client.to_send.erase(0, static_cast<std::size_t>(count));
  return true;
}

} // namespace fsdp
