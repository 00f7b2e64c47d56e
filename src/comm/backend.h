#pragma once
// The backends by name, and what each needs to make a communicator.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/store.h"

namespace fsdp {

struct BackendArgs {
  std::shared_ptr<Store> store; ///< of this group alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::string group_name; ///< for messages: "world", "shard", ...
  /// An address towards which every rank has a route; empty: this host.
  std::string master_addr;
};

/// A communicator, or why these ranks cannot use the backend (not on one host,
/// ...).
struct MadeCommunicator {
  std::unique_ptr<Communicator> communicator{};
  std::string why_not{};
};

/// [collective] Makes the group's communicator on every rank, or on none.
using BackendFactory = MadeCommunicator (*)(const BackendArgs& args);

struct Backend {
  std::string name;
  BackendFactory factory;
  /// "auto" tries the backends that have a place, the lowest first.
  std::optional<int> place_in_auto;
};

/// Backends register here once, by name. `register_host_backends` (self,
/// inproc, shm) and `register_gloo_backend` are idempotent and thread-safe.
void register_backend(Backend backend);
void register_host_backends();

std::vector<std::string> backend_names();

/// [collective] `name` is a registered name or "auto": a world of one takes
/// self, otherwise the first of shm, gloo, ... that all ranks can use. Throws
/// ConfigError naming the valid names for an unknown one, and CommError with
/// the reason if a named backend cannot be used by these ranks.
std::unique_ptr<Communicator> make_communicator(
    std::string_view name, const BackendArgs& args);

} // namespace fsdp
