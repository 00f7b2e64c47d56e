#pragma once
// Unix sockets of the abstract namespace (nothing in the file system), and
// descriptors sent over them. Errors are CommError without a rank.

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace fsdp::host {

/// "fsdp-" and 128 random bits.
std::string random_socket_name();

UniqueFd listen_at(const std::string& name, int backlog);
UniqueFd connect_to(const std::string& name);
/// The next connection of this user's processes; empty if there is none.
UniqueFd accept_from(const UniqueFd& listener);

/// A descriptor that becomes readable when the process ends.
UniqueFd open_pid(pid_t pid);
/// The same for the process that connected.
UniqueFd open_peer_pid(const UniqueFd& socket);

/// At most this many descriptors go with one message.
constexpr std::size_t kMaxSentDescriptors = 128;

/// One number with descriptors, in one message. Never waits. False if the peer
/// has closed its end.
bool send_descriptors(
    const UniqueFd& socket,
    std::uint64_t tag,
    std::span<const int> descriptors);

struct Received {
  std::uint64_t tag = 0;
  std::vector<UniqueFd> descriptors;
};

/// The next message, which must be there already.
Received receive_descriptors(const UniqueFd& socket);

} // namespace fsdp::host
