#pragma once
// Sockets whose errors tell the user what to change. Addresses in digits are
// never given to a resolver, and no address is ever looked up backwards.

#include <chrono>
#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace fsdp {

/// Of listen_as_master. Throws ConfigError if a name is unknown or the port is
/// taken; `rank` is for the text.
UniqueFd listen_on(const std::string& host, int port, int rank);

/// Connects to `host`:`port` once something listens there. Throws ConfigError
/// for an unknown name and TimeoutError at the deadline; `timeout` is for its
/// text.
UniqueFd connect_to(
    const std::string& host,
    int port,
    int rank,
    std::chrono::steady_clock::time_point deadline,
    std::chrono::milliseconds timeout);

/// "address:port", with brackets around an IPv6 address.
std::string join_host_port(const std::string& host, int port);

/// The address of this host, in digits, from which `host` is reached.
/// "127.0.0.1" if `host` is empty or not to be reached.
std::string local_address_towards(const std::string& host);

/// Of an address in digits.
bool is_loopback(const std::string& address);

/// Where the peers reach this host, if it is `own` by its route to the master,
/// and `others` are what they found. The master's own host may have found the
/// loopback.
std::string address_for_peers(
    const std::string& own, const std::vector<std::string>& others);

} // namespace fsdp
