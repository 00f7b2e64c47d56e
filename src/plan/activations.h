#pragma once
// What a pass keeps for its backward, and what its logits take. Estimates:
// docs/planner.md has the counts and their source. All are 0 for a model of
// which only the tensors are known, and throw ConfigError for what 64 bits
// cannot count.

#include <cstdint>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

/// Bytes that the blocks keep from the forward to the backward, on a rank.
std::int64_t activation_bytes(const ModelShape& model, const Job& job);

/// Bytes that one block takes while its backward runs: what checkpointing
/// computes again, and the gradients of activations.
std::int64_t working_bytes(const ModelShape& model, const Job& job);

/// Bytes of the logits' log-softmax in fp32 and two gradients of it; with a
/// fused loss, of the logits and their gradient in the compute dtype. The
/// program lets go of narrower logits before its backward.
std::int64_t logit_bytes(const ModelShape& model, const Job& job);

} // namespace fsdp::plan
