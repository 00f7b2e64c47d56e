#pragma once
// A client of the store that torchrun's agent runs.

#include <memory>

#include "comm/c10d/job_store.h"

namespace fsdp {

/// As connect_job_store without `serve`. LibTorch's client asks the resolver
/// once for the name of the agent's address, for its own messages.
std::shared_ptr<Store> connect_agent_store(const JobStoreArgs& args);

} // namespace fsdp
