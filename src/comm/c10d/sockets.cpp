#include "comm/c10d/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Never asks a resolver about an address in digits. Returns null on failure,
/// with getaddrinfo's code in `error`.
Addresses look_up(const std::string& host, int port, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  const std::string service = std::to_string(port);
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  if (error == EAI_NONAME) {
    hints.ai_flags = AI_NUMERICSERV;
    error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  }
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

bool is_in_digits(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

[[noreturn]] void throw_unknown_host(
    const std::string& host, int rank, int error) {
  throw ConfigError(
      rank_prefix(rank) + "the master address '" + host +
      "' cannot be resolved (" + gai_strerror(error) +
      "); set MASTER_ADDR to the name or address of rank 0's host");
}

UniqueFd open_socket(const addrinfo& address) {
  return UniqueFd(
      socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0));
}

/// Returns 0 or errno.
int try_listen(const UniqueFd& fd, const sockaddr* address, socklen_t length) {
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), address, length) != 0 || listen(fd.get(), 1024) != 0) {
    return errno;
  }
  return 0;
}

int listen_everywhere(const addrinfo& like, int port, UniqueFd& fd) {
  fd = open_socket(like);
  if (like.ai_family == AF_INET6) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(static_cast<std::uint16_t>(port));
    return try_listen(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any));
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  return try_listen(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any));
}

UniqueFd try_connect(const addrinfo& address, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
      deadline - Clock::now());
  if (left.count() <= 0) {
    return UniqueFd();
  }
  UniqueFd fd = open_socket(address);
  // A connect without an end in time would outlive the deadline, by minutes if
  // a firewall drops the packets.
  timeval limit{};
  limit.tv_sec = left.count() / 1'000'000;
  limit.tv_usec = left.count() % 1'000'000;
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    return UniqueFd();
  }
  limit = {};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

} // namespace

std::string join_host_port(const std::string& host, int port) {
  return host.find(':') == std::string::npos
             ? host + ":" + std::to_string(port)
             : "[" + host + "]:" + std::to_string(port);
}

UniqueFd listen_on(const std::string& host, int port, int rank) {
  int error = 0;
  const Addresses addresses = look_up(host, port, error);
  if (!addresses) {
    throw_unknown_host(host, rank, error);
  }
  const addrinfo& first = *addresses;
  UniqueFd fd = open_socket(first);
  int code = EADDRNOTAVAIL;
  if (is_in_digits(host) || host == "localhost") {
    code = try_listen(fd, first.ai_addr, first.ai_addrlen);
  }
  if (code == EADDRNOTAVAIL) {
    code = listen_everywhere(first, port, fd);
  }
  if (code == EADDRINUSE) {
    throw ConfigError(
        rank_prefix(rank) + "port " + std::to_string(port) +
        " of the master address " + host +
        " is in use by another program; choose a free MASTER_PORT");
  }
  if (code != 0) {
    throw ConfigError(
        rank_prefix(rank) + "cannot listen on " + join_host_port(host, port) +
        " (" + std::strerror(code) +
        "); set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host");
  }
  return fd;
}

UniqueFd connect_to(
    const std::string& host,
    int port,
    int rank,
    Clock::time_point deadline,
    std::chrono::milliseconds timeout) {
  auto pause = std::chrono::milliseconds(5);
  for (;;) {
    int error = 0;
    const Addresses addresses = look_up(host, port, error);
    if (!addresses && error != EAI_AGAIN) {
      throw_unknown_host(host, rank, error);
    }
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      if (UniqueFd fd = try_connect(*a, deadline); fd) {
        return fd;
      }
    }
    const auto now = Clock::now();
    if (now >= deadline && !addresses) {
      throw TimeoutError(
          rank_prefix(rank) + "the master address '" + host +
          "' could not be resolved within " + time_text(timeout) + " (" +
          gai_strerror(error) +
          "); set MASTER_ADDR to the name or address of rank 0's host");
    }
    if (now >= deadline) {
      throw TimeoutError(
          rank_prefix(rank) + "rank 0 did not answer at " +
          join_host_port(host, port) + " within " + time_text(timeout) +
          "; start it, correct MASTER_ADDR and MASTER_PORT, or raise the "
          "timeout");
    }
    std::this_thread::sleep_until(std::min(deadline, now + pause));
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

std::string local_address_towards(const std::string& host) {
  const std::string fallback = "127.0.0.1";
  if (host.empty()) {
    return fallback;
  }
  constexpr int kAnyPort = 9;
  int error = 0;
  const Addresses addresses = look_up(host, kAnyPort, error);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket sends nothing: it asks for the route.
    const UniqueFd fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    char digits[NI_MAXHOST] = {};
    if (connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) ==
            0 &&
        getnameinfo(
            reinterpret_cast<sockaddr*>(&local),
            length,
            digits,
            sizeof(digits),
            nullptr,
            0,
            NI_NUMERICHOST) == 0) {
      return digits;
    }
  }
  return fallback;
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.compare(0, 4, "127.") == 0;
}

std::string address_for_peers(
    const std::string& own, const std::vector<std::string>& others) {
  for (const std::string& other : others) {
    if (is_loopback(own) && !is_loopback(other)) {
      return local_address_towards(other);
    }
  }
  return own;
}

} // namespace fsdp
