#include "launch/master_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "fsdp/error.h"

namespace fsdp::detail {

namespace {

namespace fs = std::filesystem;

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
      if (!local.ends_with(suffix.str()) || inode == "0") {
        continue;
      }
      found = SocketEntry{inode, user};
      if (state == "0A") { // listens
        return found;
      }
    }
  }
  return found;
}

std::string command_line(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::ostringstream bytes; // not by iterators: they throw if it ends meanwhile
  bytes << file.rdbuf();
  std::string text = bytes.str();
  std::replace(text.begin(), text.end(), '\0', ' ');
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (text.ends_with(' ')) {
    text.pop_back();
  }
  constexpr std::size_t kShown = 80;
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

bool holds_socket(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end;
       !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(it->path(), unreadable) == link) {
      return true;
    }
  }
  return false;
}

} // namespace

std::string describe_port_owner(int port) {
  const auto socket = find_socket(port);
  if (!socket) {
    return "";
  }
  const std::string link = "socket:[" + socket->inode + "]";
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        holds_socket(it->path(), link)) {
      return "pid " + name + " (" + command_line(it->path()) + ")";
    }
  }
  return "a process of user " + socket->user;
}

MasterSocket listen_for_ranks(const std::string& address, int port) {
  MasterSocket socket = listen_as_master(address, port);
  if (socket.fd) {
    return socket;
  }
  std::string text = "cannot listen on port " + std::to_string(port) + " of " +
                     address + ": " + std::strerror(socket.error);
  if (socket.error == EADDRINUSE) {
    const std::string owner = describe_port_owner(port);
    text = "port " + std::to_string(port) + " of " + address + " is in use" +
           (owner.empty() ? "" : " by " + owner) +
           ": choose another --master-port, or leave it out on a single node "
           "for a free one";
  }
  throw ConfigError(text);
}

} // namespace fsdp::detail
