#pragma once
// The port at which the ranks of a job meet, held from before they start.

#include <string>

#include "core/unique_fd.h"

namespace fsdp::detail {

struct Listener {
  UniqueFd fd; ///< listens, closed on exec
  int port = 0;
};

/// Binds and listens. A numeric `address` of this machine is bound as given
/// and never looked up; for a name, or an address that this machine does not
/// carry itself (behind a translation), all its addresses are. `port` 0 takes
/// a free one. Throws ConfigError naming the port and, where it can be seen,
/// the process that has it.
Listener listen_for_ranks(const std::string& address, int port);

/// "pid 1234 (python3 train.py)", "a process of user 1000" or "" for the
/// owner of a local TCP port.
std::string describe_port_owner(int port);

} // namespace fsdp::detail
