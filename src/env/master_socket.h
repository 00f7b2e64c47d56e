#pragma once
// The socket at which the ranks of a job meet, as a launcher and rank 0 open
// it.

#include <string>

#include "core/unique_fd.h"

namespace fsdp {

struct MasterSocket {
  UniqueFd fd; ///< listens, closed on exec; empty: see `error`
  int port = 0;
  int error = 0; ///< errno
};

/// The port at which the internet socket `fd` listens; 0 if it does not.
int bound_port(int fd);

/// Listens at `address`:`port`: only on that address if it is given in digits,
/// or as localhost, and this host carries it, else on all of them. For a name
/// may mean another address here than on the other hosts: its own, in many an
/// /etc/hosts, is 127.0.1.1; and an address may be forwarded. Nothing is looked
/// up. `port` 0 takes a free one.
MasterSocket listen_as_master(const std::string& address, int port);

} // namespace fsdp
