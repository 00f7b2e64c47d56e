// After Korthikanti et al., "Reducing Activation Recomputation in Large
// Transformer Models" (arXiv:2205.05198), section 4: a block of GPT keeps
// sbh (34 + 5 a s / h) bytes in 16 bits, dropout included. Without dropout and
// for other blocks the same counts are made here one by one, in elements of a
// token, for s*b tokens.

#include "plan/activations.h"

#include "core/dtype.h"
#include "plan/count.h"

namespace fsdp::plan {

namespace {

/// Bytes of one token and block.
struct PerToken {
  Count matmuls = 0;     ///< results of products and of fused attention
  Count elementwise = 0; ///< inputs of norms, activations, products otherwise
  Count scores = 0;      ///< attention's matrix of a plain implementation
};

constexpr std::int64_t kFp32 = 4;

PerToken attention_of(
    const Transformer& t, const Job& job, std::int64_t element) {
  const Count query = Count(t.heads) * t.head_dim;
  const Count keys = Count(t.kv_heads) * t.head_dim;
  PerToken bytes;
  // q, k, v; attention's result, which the output projection reads.
  bytes.matmuls = (query + keys + keys + query) * element;
  // The norm's input and result (a compiler computes the result again).
  bytes.elementwise = Count(t.hidden) * element * (job.compiled ? 1 : 2);
  if (job.fused_attention) {
    bytes.matmuls += Count(t.heads) * kFp32; // the log of the sums
  } else {
    // Softmax's result, which its own backward and the next product read.
    bytes.scores = Count(t.heads) * job.seq_len * element;
  }
  return bytes;
}

PerToken feed_forward_of(
    const Transformer& t, const Job& job, std::int64_t element) {
  const std::int64_t copies = t.experts > 0 ? t.experts_per_token : 1;
  const Count wide = Count(t.ffn) * element * copies;
  PerToken bytes;
  // up (and gate) for the activation's backward.
  bytes.matmuls = t.mlp == Mlp::kGated ? wide + wide : wide;
  // The input of down; with a gate also the activated gate.
  bytes.elementwise = Count(t.hidden) * element * (job.compiled ? 1 : 2);
  if (!job.compiled) {
    bytes.elementwise += t.mlp == Mlp::kGated ? wide + wide : wide;
  }
  if (t.experts > 0) {
    // Each expert's input and result are rows of their own; so are the scores.
    bytes.elementwise += Count(t.hidden) * element * copies * 2;
    bytes.elementwise += Count(t.experts) * kFp32;
  }
  return bytes;
}

PerToken block_of(const Transformer& t, const Job& job, bool has_cross) {
  const auto element =
      static_cast<std::int64_t>(size_of(job.precision.compute));
  const PerToken attention = attention_of(t, job, element);
  const PerToken feed_forward = feed_forward_of(t, job, element);
  const std::int64_t attentions = has_cross ? 2 : 1;
  return {
      .matmuls = attention.matmuls * attentions + feed_forward.matmuls,
      .elementwise =
          attention.elementwise * attentions + feed_forward.elementwise,
      .scores = attention.scores * attentions};
}

Count all_of(const PerToken& bytes) {
  return bytes.matmuls + bytes.elementwise + bytes.scores;
}

Count kept_of(const PerToken& bytes, const Transformer& t, const Job& job) {
  const Count input = Count(t.hidden) * size_of(job.precision.compute);
  switch (job.checkpointing) {
    case Checkpointing::kNone:
      return all_of(bytes);
    case Checkpointing::kSelective:
      return input + bytes.matmuls;
    case Checkpointing::kFull:
      return input;
  }
  return all_of(bytes);
}

} // namespace

std::int64_t activation_bytes(const ModelShape& model, const Job& job) {
  if (!model.transformer) {
    return 0;
  }
  const Transformer& t = *model.transformer;
  const Count tokens = Count(job.micro_batch) * job.seq_len;
  const PerToken decoder = block_of(t, job, t.encoder_layers > 0);
  const PerToken encoder = block_of(t, job, false);
  Count total = kept_of(decoder, t, job) * tokens * t.layers +
                kept_of(encoder, t, job) * tokens * t.encoder_layers;
  if (job.checkpointing != Checkpointing::kNone) {
    total += all_of(decoder) * tokens;
  }
  // The last block's result, and what the final norm keeps.
  total += Count(t.hidden) * size_of(job.precision.compute) * tokens * 2;
  return total.value();
}

std::int64_t logit_bytes(const ModelShape& model, const Job& job) {
  if (!model.transformer) {
    return 0;
  }
  const auto element =
      static_cast<std::int64_t>(size_of(job.precision.compute));
  const Count logits =
      Count(job.micro_batch) * job.seq_len * model.transformer->vocab;
  // In fp32: log-softmax of it, and its gradient. A narrower head adds itself
  // and the copy that the loss reads.
  const std::int64_t bytes = element < kFp32 ? element + 3 * kFp32 : 3 * kFp32;
  return (logits * bytes).value();
}

} // namespace fsdp::plan
