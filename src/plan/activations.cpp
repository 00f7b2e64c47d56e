// After Korthikanti et al., "Reducing Activation Recomputation in Large
// Transformer Models" (arXiv:2205.05198), section 4: a block of GPT keeps
// sbh (34 + 5 a s / h) bytes in 16 bits, dropout included. Without dropout and
// for other blocks the same counts are made here one by one, in bytes of a
// token, for s*b tokens.

#include "plan/activations.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "plan/compute_work.h"
#include "plan/count.h"

namespace fsdp::plan {

namespace {

constexpr std::int64_t kFp32 = 4;

/// Counts bytes of one token in the blocks of one model and job.
class TokenBytes {
 public:
  TokenBytes(const Transformer& transformer, const Job& job)
      : t_(transformer),
        job_(job),
        element_(static_cast<std::int64_t>(size_of(job.precision.compute))) {}

  /// Without checkpointing.
  Count all_of(BlockKind kind) const {
    const std::int64_t attentions = attentions_of(kind);
    return (attention() + norm()) * attentions + norm() + feed_forward();
  }

  Count kept_of(BlockKind kind) const {
    switch (job_.checkpointing) {
      case Checkpointing::kNone:
        return all_of(kind);
      case Checkpointing::kSelective:
        return hidden() + products_kept(kind) +
               (heads() + sums()) * attentions_of(kind);
      case Checkpointing::kFull:
        return hidden();
    }
    return all_of(kind);
  }

  /// Gradients that are there at once: of the MLP's wide tensors and of two
  /// results.
  Count gradients() const {
    return wide() * (t_.mlp == Mlp::kGated ? 3 : 2) + hidden() * 2;
  }

  Count hidden() const { return Count(t_.hidden) * element_; }

 private:
  static std::int64_t attentions_of(BlockKind kind) {
    return kind == BlockKind::kWithCrossAttention ? 2 : 1;
  }

  Count heads() const { return Count(t_.heads) * t_.head_dim * element_; }

  std::int64_t copies() const {
    return t_.experts > 0 ? t_.experts_per_token : 1;
  }

  Count wide() const { return Count(t_.ffn) * element_ * copies(); }

  /// The logarithms of the sums that fused attention keeps.
  Count sums() const {
    return job_.fused_attention ? Count(t_.heads) * kFp32 : Count(0);
  }

  /// q, k and v as the kernel reads them (keys repeated for every head), and
  /// its result. Plain: the result of softmax as well.
  Count attention() const {
    const Count scores = job_.fused_attention
                             ? Count(0)
                             : Count(t_.heads) * job_.seq_len * element_;
    return heads() * 4 + sums() + scores;
  }

  /// Input and result; an RMSNorm in eager mode keeps a copy in fp32, too.
  Count norm() const {
    const bool copies_wider = t_.norm == Norm::kRmsNorm && !job_.compiled;
    return hidden() * 2 + Count(t_.hidden) * (copies_wider ? kFp32 : 0);
  }

  /// up and its activation; with a gate: gate, up, their product, and in eager
  /// mode the activated gate.
  Count feed_forward() const {
    const bool is_gated = t_.mlp == Mlp::kGated;
    Count bytes = wide() * (!is_gated ? 2 : job_.compiled ? 3 : 4);
    if (t_.experts > 0) {
      // Each expert's input and result are rows of their own; so are the
      // router's scores.
      bytes += hidden() * copies() * 2 + Count(t_.experts) * kFp32;
    }
    return bytes;
  }

  /// Selective checkpointing keeps the products that it does not compute again.
  Count products_kept(BlockKind kind) const {
    Count bytes = 0;
    for (const Linear& linear : block_work(t_, kind, job_).linears) {
      if (!linear.dropped_by_selective) {
        bytes += Count(std::llround(linear.out)) *
                 std::llround(linear.count * linear.token_share) * element_;
      }
    }
    return bytes;
  }

  const Transformer& t_;
  const Job& job_;
  std::int64_t element_;
};

Count tokens_of(const Job& job) {
  return Count(job.micro_batch) * job.seq_len;
}

/// Of the `blocks` from `first` on.
std::int64_t num_checkpointed(
    const Job& job, std::int64_t first, std::int64_t blocks) {
  if (job.checkpointing == Checkpointing::kNone) {
    return 0;
  }
  return job.checkpointed_blocks == 0
             ? blocks
             : std::clamp<std::int64_t>(
                   job.checkpointed_blocks - first, 0, blocks);
}

BlockKind last_kind(const Transformer& t) {
  return kind_of_block(t, t.encoder_layers + t.layers - 1);
}

} // namespace

std::int64_t activation_bytes(const ModelShape& model, const Job& job) {
  if (!model.transformer) {
    return 0;
  }
  const Transformer& t = *model.transformer;
  const TokenBytes bytes(t, job);
  // The last block's result, and what the final norm keeps.
  Count total = bytes.hidden() * 2;
  const auto add_stack = [&](std::int64_t first, std::int64_t blocks) {
    if (blocks > 0) {
      const BlockKind kind = kind_of_block(t, first);
      const std::int64_t kept = num_checkpointed(job, first, blocks);
      total +=
          bytes.kept_of(kind) * kept + bytes.all_of(kind) * (blocks - kept);
    }
  };
  add_stack(0, t.encoder_layers);
  add_stack(t.encoder_layers, t.layers);
  return (total * tokens_of(job)).value();
}

std::int64_t working_bytes(const ModelShape& model, const Job& job) {
  if (!model.transformer) {
    return 0;
  }
  const Transformer& t = *model.transformer;
  const TokenBytes bytes(t, job);
  Count total = bytes.gradients();
  if (job.checkpointing != Checkpointing::kNone) {
    total += bytes.all_of(last_kind(t));
  }
  return (total * tokens_of(job)).value();
}

std::int64_t logit_bytes(const ModelShape& model, const Job& job) {
  if (!model.transformer) {
    return 0;
  }
  const auto element =
      static_cast<std::int64_t>(size_of(job.precision.compute));
  const Count logits = tokens_of(job) * model.transformer->vocab;
  return (logits * (job.fused_loss ? 2 * element : 3 * kFp32)).value();
}

} // namespace fsdp::plan
