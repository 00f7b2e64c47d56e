#pragma once
// The job's store over TCP: a server in rank 0 and a client in every rank. Our
// own, because c10d::TCPStore asks the resolver for the name of every address
// that it talks to, writes warnings with stack traces to stderr when a wait
// ends in vain, and waits without end on what is no store. Torchrun's agent has
// such a store already; agent_store.h is the client for that one.
//
// A frame is a JobStoreFrame, then the key, then the value, in the byte order
// of the host. The client begins with kHello, whose id is the generation (how
// many worlds its process has formed before). The server returns it, unless it
// is still serving an earlier generation and about to go; then the client comes
// again. After that it sends kSet (answered by kDone) and kGet (answered by
// kDone with the value, once somebody has set the key). An answer carries its
// request's id.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/store.h"

namespace fsdp {

enum class JobStoreCall : std::uint32_t { kHello, kSet, kGet, kDone };

struct JobStoreFrame {
  static constexpr std::uint32_t kMagic = 0x66736470; ///< "fsdp", version 0
  static constexpr std::uint32_t kMaxBytes = 64 << 20;

  std::uint32_t magic = kMagic;
  JobStoreCall call = JobStoreCall::kHello;
  std::uint32_t id = 0;
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;

  bool is_sound() const {
    return magic == kMagic && call <= JobStoreCall::kDone &&
           key_bytes <= kMaxBytes && value_bytes <= kMaxBytes;
  }
};

struct JobStoreArgs {
  std::string host; ///< used as given: a name is looked up, an address is not
  int port = 0;
  int rank = 0;                 ///< for messages
  std::uint32_t generation = 0; ///< of this world in this process
  /// Run the server in this process, or use the one that runs already.
  bool serve = false;
  /// A socket that listens on `port` already; stays the caller's. `serve` only.
  std::optional<int> listen_fd = std::nullopt;
  std::chrono::milliseconds timeout{300'000}; ///< to reach the server
};

/// Throws ConfigError for a host that cannot be resolved and a port that cannot
/// be listened on, TimeoutError if no server answers in time. Calls on the
/// store throw PeerDiedError once its server is gone.
std::shared_ptr<Store> connect_job_store(const JobStoreArgs& args);

/// What those PeerDiedErrors say.
std::string store_lost_text(const JobStoreArgs& args, std::string_view what);

} // namespace fsdp
