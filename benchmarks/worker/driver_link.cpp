#include "worker/driver_link.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp::bench {

DriverLink::DriverLink() {
  const char* path = std::getenv("FSDP_BENCH_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) {
    throw ConfigError(
        "FSDP_BENCH_SOCKET names no socket: benchmarks/bench.py starts this "
        "program");
  }
  std::strcpy(address.sun_path, path);
  fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd_ || ::connect(
                  fd_.get(),
                  reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) != 0) {
    throw ConfigError(
        "FSDP_BENCH_SOCKET is '" + std::string(path) +
        "', which cannot be connected to: " + std::strerror(errno));
  }
}

void DriverLink::send(const std::string& text) {
  const std::string line = text + "\n";
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count =
        ::send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) {
      throw Error(std::string("the driver is gone: ") + std::strerror(errno));
    }
    sent += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

std::optional<std::string> DriverLink::receive() {
  std::size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    std::array<char, 256> part{};
    const ssize_t count = ::recv(fd_.get(), part.data(), part.size(), 0);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return std::nullopt;
    }
    received_.append(part.data(), static_cast<std::size_t>(count));
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

} // namespace fsdp::bench
