#pragma once
// The port at which the ranks of a job meet, held from before they start.

#include <string>

#include "env/master_socket.h"

namespace fsdp::detail {

/// Of listen_as_master. Throws ConfigError naming the port and, where it can be
/// seen, the process that has it.
MasterSocket listen_for_ranks(const std::string& address, int port);

/// "pid 1234 (python3 train.py)", "a process of user 1000" or "" for the
/// owner of a local TCP port.
std::string describe_port_owner(int port);

} // namespace fsdp::detail
