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
#include "env/master_socket.h"
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

[[noreturn]] void throw_unknown_host(
    const std::string& host, int rank, int error) {
  throw ConfigError(
      rank_prefix(rank) + "the master address '" + host +
      "' cannot be resolved (" + gai_strerror(error) +
      "); set MASTER_ADDR to the name or address of rank 0's host");
}

UniqueFd try_connect(const addrinfo& address, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
      deadline - Clock::now());
  if (left.count() <= 0) {
    return UniqueFd();
  }
  UniqueFd fd(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0));
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
  int unknown = 0;
  if (!look_up(host, port, unknown)) {
    throw_unknown_host(host, rank, unknown);
  }
  MasterSocket socket = listen_as_master(host, port);
  if (socket.error == EADDRINUSE) {
    throw ConfigError(
        rank_prefix(rank) + "port " + std::to_string(port) +
        " of the master address " + host +
        " is in use by another program; choose a free MASTER_PORT");
  }
  if (!socket.fd) {
    throw ConfigError(
        rank_prefix(rank) + "cannot listen on " + join_host_port(host, port) +
        " (" + std::strerror(socket.error) +
        "); set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host");
  }
  return std::move(socket.fd);
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
