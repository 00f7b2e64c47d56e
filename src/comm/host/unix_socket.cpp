#include "comm/host/unix_socket.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp::host {

namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw CommError("cannot " + what + ": " + std::strerror(errno));
}

UniqueFd new_socket() {
  UniqueFd socket(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    throw_errno("open a unix socket");
  }
  return socket;
}

struct Address {
  sockaddr_un storage{};
  socklen_t length = 0;

  // A zero byte before the name makes it abstract.
  explicit Address(const std::string& name) {
    storage.sun_family = AF_UNIX;
    name.copy(storage.sun_path + 1, sizeof(storage.sun_path) - 1);
    length = static_cast<socklen_t>(
        offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

ucred peer_of(const UniqueFd& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    throw_errno("ask who is at the other end of a unix socket");
  }
  return peer;
}

// Ancillary data of one message with descriptors.
struct Control {
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(sizeof(int) * kMaxSentDescriptors)> bytes{};
};

} // namespace

std::string random_socket_name() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    throw_errno("read random bytes");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "fsdp-";
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

UniqueFd listen_at(const std::string& name, int backlog) {
  UniqueFd socket = new_socket();
  const Address address(name);
  if (bind(socket.get(), address.get(), address.length) != 0 ||
      listen(socket.get(), backlog) != 0) {
    throw_errno("listen at a unix socket");
  }
  return socket;
}

UniqueFd connect_to(const std::string& name) {
  UniqueFd socket = new_socket();
  const Address address(name);
  if (connect(socket.get(), address.get(), address.length) != 0) {
    throw_errno("reach rank 0's unix socket");
  }
  return socket;
}

UniqueFd accept_from(const UniqueFd& listener) {
  while (true) {
    UniqueFd socket(accept4(
        listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return socket;
      }
      throw_errno("accept a rank at a unix socket");
    }
    if (peer_of(socket).uid == geteuid()) {
      return socket;
    }
  }
}

UniqueFd open_pid(pid_t pid) {
  UniqueFd descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!descriptor) {
    throw_errno("watch process " + std::to_string(pid));
  }
  return descriptor;
}

UniqueFd open_peer_pid(const UniqueFd& socket) {
  const pid_t pid = peer_of(socket).pid;
  if (pid == 0) {
    throw CommError("a rank's process is in another pid namespace");
  }
  return open_pid(pid);
}

bool send_descriptors(
    const UniqueFd& socket,
    std::uint64_t tag,
    std::span<const int> descriptors) {
  iovec data{&tag, sizeof(tag)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  Control control;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(
        CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) {
      return false;
    }
    if (errno != EINTR) {
      throw_errno("hand a descriptor to another rank");
    }
  }
  return true;
}

Received receive_descriptors(const UniqueFd& socket) {
  Received received;
  iovec data{&received.tag, sizeof(received.tag)};
  Control control;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t num_bytes = 0;
  do {
    num_bytes = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (num_bytes < 0 && errno == EINTR);
  if (num_bytes < 0) {
    throw_errno("take a descriptor from another rank");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    throw CommError(
        "cannot take a descriptor from another rank: too many open files; "
        "raise the limit (ulimit -n)");
  }
  if (num_bytes != static_cast<ssize_t>(sizeof(received.tag))) {
    throw CommError("another rank has closed its unix socket");
  }
  return received;
}

} // namespace fsdp::host
