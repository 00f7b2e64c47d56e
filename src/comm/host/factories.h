#pragma once
// The backends whose ranks share one host: see BackendFactory.

#include "comm/backend.h"

namespace fsdp::host {

/// A world of one.
MadeCommunicator make_self(const BackendArgs& args);

/// Ranks that are threads of one process.
MadeCommunicator make_inproc(const BackendArgs& args);

/// Ranks that are processes of one host (or threads, which join one by one).
/// The environment variable FSDP_DISABLE_SHM, if set to anything but 0, makes a
/// rank say that it cannot, as if it were on a host of its own.
MadeCommunicator make_shm(const BackendArgs& args);

} // namespace fsdp::host
