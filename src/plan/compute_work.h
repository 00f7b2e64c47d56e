#pragma once
// What the devices of one rank have to do for a block and for the head:
// products of matrices, attention, and bytes that the operations between them
// move. Counts only; compute_time.h turns them into seconds.

#include <cstdint>
#include <vector>

#include "plan/job.h"
#include "plan/transformer.h"

namespace fsdp::plan {

/// y = x W, with x of (tokens x in).
struct Linear {
  double in = 0;
  double out = 0;
  double count = 1;       ///< equal ones: a mixture's experts
  double token_share = 1; ///< of the tokens that one of them takes
  /// Selective checkpointing computes it again (torchtitan keeps every second
  /// product of a block).
  bool dropped_by_selective = false;

  double flops(double tokens) const {
    return 2 * in * out * count * token_share * tokens;
  }
};

enum class BlockKind : std::uint8_t {
  kPlain,
  kWithCrossAttention ///< of the decoder of an encoder-decoder
};

struct BlockWork {
  std::vector<Linear> linears;
  /// FLOPs of attention per token, forward: 4 x keys x width, half of it where
  /// the implementation skips what a causal mask hides.
  double attention_flops = 0;
  /// The same where nothing is skipped, which MFU counts.
  double attention_flops_unmasked = 0;
  double forward_bytes = 0;  ///< per token, outside of products
  double backward_bytes = 0; ///< likewise
};

BlockKind kind_of_block(const Transformer& transformer, std::int64_t index);

BlockWork block_work(
    const Transformer& transformer, BlockKind kind, const Job& job);

/// The output head and the loss.
BlockWork head_work(const Transformer& transformer, const Job& job);

/// FLOPs of one token of training, by the convention of PaLM: 6 a parameter
/// that takes part (a mixture's idle experts do not) and 12 x width x keys an
/// attention, nothing skipped, nothing computed twice.
double model_flops_per_token(
    const Transformer& transformer, std::int64_t num_params, const Job& job);

/// What checkpointing adds to that.
double recompute_flops_per_token(
    const Transformer& transformer, const Job& job);

} // namespace fsdp::plan
