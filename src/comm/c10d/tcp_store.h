#pragma once
// The job's store: a small TCP server in rank 0 (or in torchrun's agent) and a
// client in every rank.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/store.h"

namespace fsdp {

struct TcpStoreArgs {
  std::string host; ///< used as given: a name is looked up, an address is not
  int port = 0;
  int rank = 0;       ///< for messages
  bool serve = false; ///< run the server in this process
  /// A socket that listens on `port` already; stays the caller's. `serve` only.
  std::optional<int> listen_fd;
  std::chrono::milliseconds timeout{300'000}; ///< to reach the server
};

/// Throws ConfigError for a host that cannot be resolved and a port that cannot
/// be listened on, TimeoutError if the server does not answer in time. Calls on
/// the store throw PeerDiedError once its server is gone.
std::shared_ptr<Store> connect_tcp_store(const TcpStoreArgs& args);

} // namespace fsdp
