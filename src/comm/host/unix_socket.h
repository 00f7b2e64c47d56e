#pragma once
// Unix sockets of the abstract namespace (nothing in the file system), and
// descriptors sent over them. Errors are CommError without a rank.

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::host {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// "fsdp-" and 128 random bits.
std::string random_socket_name();

FileDescriptor listen_at(const std::string& name, int backlog);
FileDescriptor connect_to(const std::string& name);
/// The next connection of this user's processes; not open if there is none.
FileDescriptor accept_from(const FileDescriptor& listener);

/// A descriptor that becomes readable when the process ends.
FileDescriptor open_pid(pid_t pid);
/// The same for the process that connected.
FileDescriptor open_peer_pid(const FileDescriptor& socket);

/// At most this many descriptors go with one message.
constexpr std::size_t kMaxSentDescriptors = 128;

/// One number with descriptors, in one message. Never waits. False if the peer
/// has closed its end.
bool send_descriptors(
    const FileDescriptor& socket,
    std::uint64_t tag,
    std::span<const int> descriptors);

struct Received {
  std::uint64_t tag = 0;
  std::vector<FileDescriptor> descriptors;
};

/// The next message, which must be there already.
Received receive_descriptors(const FileDescriptor& socket);

} // namespace fsdp::host
