#pragma once
// What a pass keeps for its backward, and what its logits take. Estimates:
// docs/planner.md has the counts and their source.

#include <cstdint>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

/// Bytes that the blocks keep from the forward to the backward, on a rank.
/// With full checkpointing also one block's while it is computed again. 0 for a
/// model of which only the tensors are known. Throws ConfigError for what 64
/// bits cannot count.
std::int64_t activation_bytes(const ModelShape& model, const Job& job);

/// Bytes of the logits in the compute dtype, their copy in fp32 for the loss,
/// and their gradient. 0 as above.
std::int64_t logit_bytes(const ModelShape& model, const Job& job);

} // namespace fsdp::plan
