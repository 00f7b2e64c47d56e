#pragma once
// Ranks as threads for the tests of sharded results.

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "fsdp/device_mesh.h"
#include "fsdp/process_group.h"

namespace fsdp::testing {

inline DeviceMesh shard_mesh(const ProcessGroup& world) {
  return init_device_mesh(world, "cpu", {world.size()}, {"shard"});
}

/// Runs `body` on each of `size` ranks over `backend` with a short deadline, so
/// that a hang is an error.
inline void with_ranks(
    int size,
    const std::function<void(ProcessGroup)>& body,
    const std::string& backend = "inproc") {
  run_ranks(
      size,
      body,
      {.backend = backend, .timeout = std::chrono::milliseconds(60'000)});
}

} // namespace fsdp::testing
