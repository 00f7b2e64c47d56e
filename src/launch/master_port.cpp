#include "launch/master_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "fsdp/error.h"

namespace fsdp::detail {

namespace {

namespace fs = std::filesystem;

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
    v4.sin_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = address.family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

/// An empty descriptor, and errno, if the address cannot be had.
UniqueFd try_listen(const Address& address) {
  UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  // Connections of an earlier job may linger on the port for a minute.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family == AF_INET6)
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (!fd ||
      bind(
          fd.get(),
          reinterpret_cast<const sockaddr*>(&address.storage),
          address.size) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

UniqueFd try_listen_everywhere(int port) {
  UniqueFd fd = try_listen(*numeric_address("::", port));
  if (!fd && errno != EADDRINUSE)
    fd = try_listen(*numeric_address("0.0.0.0", port)); // no IPv6 here
  return fd;
}

int bound_port(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size);
  return ntohs(
      storage.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
          : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

struct SocketEntry {
  std::string inode;
  std::string user;
};

/// The socket on a local port, a listening one if there is one.
std::optional<SocketEntry> find_socket(int port) {
  std::ostringstream suffix;
  suffix << ':' << std::hex << std::uppercase;
  suffix.width(4);
  suffix.fill('0');
  suffix << port;
  std::optional<SocketEntry> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retries, user,
          timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >>
          retries >> user >> timeout >> inode;
      if (!local.ends_with(suffix.str()) || inode == "0")
        continue;
      found = SocketEntry{inode, user};
      if (state == "0A") // listens
        return found;
    }
  }
  return found;
}

std::string command_line(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::replace(text.begin(), text.end(), '\0', ' ');
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (text.ends_with(' '))
    text.pop_back();
  constexpr size_t kShown = 80;
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

bool holds_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end;
       !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(it->path(), unreadable) == link)
      return true;
  }
  return false;
}

} // namespace

std::string describe_port_owner(int port) {
  const auto socket = find_socket(port);
  if (!socket)
    return "";
  const std::string link = "socket:[" + socket->inode + "]";
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        holds_socket(it->path(), link))
      return "pid " + name + " (" + command_line(it->path()) + ")";
  }
  return "a process of user " + socket->user;
}

Listener listen_for_ranks(const std::string& address, int port) {
  const auto numeric = numeric_address(address, port);
  UniqueFd fd;
  if (numeric)
    fd = try_listen(*numeric);
  if (!numeric || (!fd && errno == EADDRNOTAVAIL))
    fd = try_listen_everywhere(port);
  if (fd) {
    const int actual = bound_port(fd.get());
    return {std::move(fd), actual};
  }
  const int error = errno;
  std::string text = "cannot listen on port " + std::to_string(port) + " of " +
                     address + ": " + std::strerror(error);
  if (error == EADDRINUSE) {
    const std::string owner = describe_port_owner(port);
    text = "port " + std::to_string(port) + " of " + address + " is in use" +
           (owner.empty() ? "" : " by " + owner) +
           ": choose another --master-port, or leave it out on a single node "
           "for a free one";
  }
  throw ConfigError(text);
}

} // namespace fsdp::detail
