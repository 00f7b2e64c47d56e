#pragma once
// The backends whose ranks share one host: see BackendFactory.

#include <memory>

#include "comm/backend.h"

namespace fsdp::host {

/// A world of one.
std::unique_ptr<Communicator> make_self(const BackendArgs& args);

/// Ranks that are threads of one process.
std::unique_ptr<Communicator> make_inproc(const BackendArgs& args);

/// Ranks that are processes of one host (or threads, which join one by one).
std::unique_ptr<Communicator> make_shm(const BackendArgs& args);

} // namespace fsdp::host
