#include "env/master_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

namespace fsdp {

namespace {

constexpr int kBacklog = 4096; // cut by the kernel to net.core.somaxconn

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = AF_INET;
};

std::optional<Address> numeric_address(const std::string& text, int port) {
  Address address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = address.family = AF_INET6;
    v6.sin6_port = htons(static_cast<std::uint16_t>(port));
    address.size = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

MasterSocket try_listen(const Address& address) {
  UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  // Connections of an earlier job may linger on the port for a minute.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const auto* any = reinterpret_cast<const sockaddr*>(&address.storage);
  if (!fd || bind(fd.get(), any, address.size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return {.fd = UniqueFd(), .error = errno};
  }
  const int port = bound_port(fd.get());
  return {.fd = std::move(fd), .port = port};
}

MasterSocket try_listen_everywhere(int port) {
  MasterSocket both = try_listen(*numeric_address("::", port));
  if (both.fd || both.error == EADDRINUSE) {
    return both;
  }
  return try_listen(*numeric_address("0.0.0.0", port)); // no IPv6 here
}

} // namespace

int bound_port(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(
      storage.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
          : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

MasterSocket listen_as_master(const std::string& address, int port) {
  const auto numeric =
      numeric_address(address == "localhost" ? "127.0.0.1" : address, port);
  if (numeric) {
    MasterSocket given = try_listen(*numeric);
    if (given.fd || given.error != EADDRNOTAVAIL) {
      return given;
    }
  }
  return try_listen_everywhere(port);
}

} // namespace fsdp
