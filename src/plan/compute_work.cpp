#include "plan/compute_work.h"

namespace fsdp::plan {

namespace {

double number(std::int64_t value) {
  return static_cast<double>(value);
}

/// Widths of a block as floating numbers.
struct Widths {
  double hidden;
  double query;
  double key;
  double ffn;

  explicit Widths(const Transformer& t)
      : hidden(number(t.hidden)),
        query(number(t.heads) * number(t.head_dim)),
        key(number(t.kv_heads) * number(t.head_dim)),
        ffn(number(t.ffn)) {}
};

void add_attention_linears(
    std::vector<Linear>& linears, const Transformer& t, const Widths& w) {
  if (t.fused_qkv) {
    linears.push_back({.in = w.hidden, .out = w.query + 2 * w.key});
  } else {
    linears.push_back({.in = w.hidden, .out = w.query});
    linears.push_back({.in = w.hidden, .out = w.key});
    linears.push_back({.in = w.hidden, .out = w.key});
  }
  linears.push_back({.in = w.query, .out = w.hidden});
}

void add_mlp_linears(
    std::vector<Linear>& linears, const Transformer& t, const Widths& w) {
  Linear up{.in = w.hidden, .out = w.ffn};
  Linear down{.in = w.ffn, .out = w.hidden};
  if (t.experts > 0) {
    linears.push_back({.in = w.hidden, .out = number(t.experts)});
    for (Linear* linear : {&up, &down}) {
      linear->count = number(t.experts);
      linear->token_share = number(t.experts_per_token) / number(t.experts);
    }
  }
  if (t.fused_gate_up) {
    up.out *= 2;
  }
  linears.push_back(up);
  if (t.mlp == Mlp::kGated && !t.fused_gate_up) {
    linears.push_back(up);
  }
  linears.push_back(down);
}

/// Elements that are read and written per token, in units of two bytes as the
/// kernels of bfloat16 training move them: what eager mode computes in fp32
/// counts twice.
struct Elements {
  double forward = 0;
  double backward = 0;

  void add(double forward_too, double backward_too, double times = 1) {
    forward += forward_too * times;
    backward += backward_too * times;
  }
};

/// LayerNorm is one kernel in eager mode, RMSNorm eight.
void add_norms(
    Elements& elements, const Transformer& t, double hidden, bool compiled) {
  if (t.norm == Norm::kLayerNorm) {
    elements.add(2 * hidden, 6 * hidden);
  } else if (compiled) {
    elements.add(2 * hidden, 4 * hidden);
  } else {
    elements.add(18 * hidden, 36 * hidden);
  }
}

void add_activation(
    Elements& elements, const Transformer& t, double ffn, bool compiled) {
  if (t.mlp == Mlp::kPlain) {
    elements.add(2 * ffn, 4 * ffn);
  } else if (compiled) {
    elements.add(3 * ffn, 5 * ffn);
  } else {
    elements.add(5 * ffn, 9 * ffn);
  }
}

Elements block_elements(
    const Transformer& t, BlockKind kind, const Widths& w, const Job& job) {
  const double attentions = kind == BlockKind::kWithCrossAttention ? 2 : 1;
  const double mlps = t.experts > 0 ? number(t.experts_per_token) : 1;
  Elements elements;
  for (int i = 0; i < attentions + 1; ++i) {
    add_norms(elements, t, w.hidden, job.compiled);
    elements.add(3 * w.hidden, 3 * w.hidden); // residual
  }
  add_activation(elements, t, mlps * w.ffn, job.compiled);
  const bool rotates = t.positions == 0 && t.relative_buckets == 0;
  if (rotates) {
    const double copies = job.compiled ? 2 : 10;
    elements.add(
        copies * (w.query + w.key), copies * (w.query + w.key), attentions);
  }
  // Gradients of q, k and v are put together, those of biases summed.
  const double joined = t.norm == Norm::kLayerNorm ? 8 : job.compiled ? 2 : 6;
  elements.add(0, joined * w.hidden, attentions);
  if (!job.fused_attention) {
    // Scale, mask and softmax over a row of scores of every head.
    const double scores = number(t.heads) * number(job.seq_len);
    elements.add(6 * scores, 8 * scores, attentions);
  }
  return elements;
}

/// Casts to fp8: the largest value is looked for, then the tensor cast; the
/// backward does so for gradients, and makes transposed copies.
void add_fp8_casts(BlockWork& work) {
  double inputs = 0;
  double outputs = 0;
  for (const Linear& linear : work.linears) {
    inputs += linear.in * linear.count * linear.token_share;
    outputs += linear.out * linear.count * linear.token_share;
  }
  work.forward_bytes += 5 * inputs;
  work.backward_bytes += 3 * inputs + 8 * outputs;
}

} // namespace

BlockKind kind_of_block(const Transformer& transformer, std::int64_t index) {
  return transformer.encoder_layers > 0 && index >= transformer.encoder_layers
             ? BlockKind::kWithCrossAttention
             : BlockKind::kPlain;
}

BlockWork block_work(
    const Transformer& transformer, BlockKind kind, const Job& job) {
  const Widths w(transformer);
  BlockWork work;
  add_attention_linears(work.linears, transformer, w);
  if (kind == BlockKind::kWithCrossAttention) {
    add_attention_linears(work.linears, transformer, w);
  }
  add_mlp_linears(work.linears, transformer, w);
  for (std::size_t i = 1; i < work.linears.size(); i += 2) {
    work.linears[i].dropped_by_selective = true;
  }
  // An encoder sees both ways; cross attention sees the whole input.
  const bool masked = transformer.causal && (transformer.encoder_layers == 0 ||
                                             kind != BlockKind::kPlain);
  const double unmasked = 4 * number(job.seq_len) * w.query;
  const double self = masked && job.fused_attention ? unmasked / 2 : unmasked;
  const bool crosses = kind == BlockKind::kWithCrossAttention;
  work.attention_flops = self + (crosses ? unmasked : 0);
  work.attention_flops_unmasked = unmasked * (crosses ? 2 : 1);
  const Elements elements = block_elements(transformer, kind, w, job);
  const auto element = static_cast<double>(size_of(job.precision.compute));
  work.forward_bytes = elements.forward * element;
  work.backward_bytes = elements.backward * element;
  if (job.precision.fp8_matmuls) {
    add_fp8_casts(work);
  }
  return work;
}

BlockWork head_work(const Transformer& transformer, const Job& job) {
  const double vocab = number(transformer.vocab);
  const double hidden = number(transformer.hidden);
  const auto element = static_cast<double>(size_of(job.precision.compute));
  BlockWork work;
  work.linears.push_back({.in = hidden, .out = vocab});
  // Logits are read, written in fp32, read and written by log_softmax; the
  // backward reads and writes those twice, and casts. A fused loss reads and
  // writes them once each way. Then the final norm.
  const double plain = element + 12;
  const double forward = job.fused_loss ? 2 * element : plain;
  const double backward = job.fused_loss ? 2 * element : element + 20;
  work.forward_bytes =
      vocab * (forward + job.logit_metrics * plain) + hidden * 3 * element;
  work.backward_bytes = vocab * backward + hidden * 6 * element;
  return work;
}

double model_flops_per_token(
    const Transformer& transformer, std::int64_t num_params, const Job& job) {
  const double blocks =
      number(transformer.layers) + number(transformer.encoder_layers);
  double idle = 0;
  if (transformer.experts > 0) {
    const double matrices = transformer.mlp == Mlp::kGated ? 3 : 2;
    idle =
        blocks *
        (number(transformer.experts) - number(transformer.experts_per_token)) *
        matrices * number(transformer.hidden) * number(transformer.ffn);
  }
  // Only an encoder-decoder has a second kind of block.
  const double crossing =
      transformer.encoder_layers > 0 ? number(transformer.layers) : 0;
  const auto attention_of = [&](BlockKind kind) {
    return block_work(transformer, kind, job).attention_flops_unmasked;
  };
  const double attention =
      (blocks - crossing) * attention_of(BlockKind::kPlain) +
      crossing * attention_of(BlockKind::kWithCrossAttention);
  return 6 * (number(num_params) - idle) + 3 * attention;
}

double recompute_flops_per_token(
    const Transformer& transformer, const Job& job) {
  if (job.checkpointing == Checkpointing::kNone) {
    return 0;
  }
  double flops = 0;
  const std::int64_t blocks = transformer.layers + transformer.encoder_layers;
  const auto of_kind = [&](BlockKind kind) {
    const BlockWork work = block_work(transformer, kind, job);
    const bool all = job.checkpointing == Checkpointing::kFull;
    double sum = all ? work.attention_flops_unmasked : 0;
    for (const Linear& linear : work.linears) {
      sum += all || linear.dropped_by_selective ? linear.flops(1) : 0;
    }
    return sum;
  };
  const double plain = of_kind(BlockKind::kPlain);
  const double cross = transformer.encoder_layers > 0
                           ? of_kind(BlockKind::kWithCrossAttention)
                           : 0;
  for (std::int64_t i = 0; i < blocks; ++i) {
    if (is_checkpointed(job, i)) {
      flops +=
          kind_of_block(transformer, i) == BlockKind::kPlain ? plain : cross;
    }
  }
  return flops;
}

} // namespace fsdp::plan
