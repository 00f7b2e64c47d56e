#pragma once
// The backends by name, and what each needs to make a communicator.

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/store.h"
#include "comm/communicator.h"

namespace fsdp {

struct BackendArgs {
  std::shared_ptr<Store> store; ///< of this group alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::string group_name; ///< for messages: "world", "shard", ...
  /// An address towards which every rank has a route; empty: this host.
  std::string master_addr;
  /// A factory that returns null leaves the reason here.
  std::string* why_not = nullptr;
};

/// [collective] Makes the group's communicator, or returns null, on every rank
/// alike, if these ranks cannot use the backend (not on one host, ...).
using BackendFactory =
    std::unique_ptr<Communicator> (*)(const BackendArgs& args);

/// Backends register here once, by name; the order of registration is the order
/// in which "auto" tries them. `register_host_backends` (self, inproc, shm) and
/// `register_gloo_backend` are idempotent and thread-safe.
void register_backend(std::string name, BackendFactory factory);
void register_host_backends();

std::vector<std::string> backend_names();

/// The environment variable FSDP_DISABLE_SHM, if set to anything but 0, makes a
/// rank say that it cannot use shm, as if it were on a host of its own.
///
/// [collective] `name` is a registered name or "auto": a world of one takes
/// self, otherwise the first of shm, gloo, ... that all ranks can use. Throws
/// ConfigError naming the valid names for an unknown one, and CommError with
/// the reason if a named backend cannot be used by these ranks.
std::unique_ptr<Communicator> make_communicator(
    std::string_view name, const BackendArgs& args);

} // namespace fsdp
