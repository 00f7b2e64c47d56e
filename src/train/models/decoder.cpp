#include "train/models/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <torch/nn/init.h>

#include <cmath>
#include <string>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr double kNormEps = 1e-5;
constexpr double kRotaryBase = 10'000;
constexpr double kInitStd = 0.02;

torch::nn::Linear linear_without_bias(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// x [batch, seq, heads, d_head]: (x1, x2) of each head's two halves are turned
// by the position's angles.
at::Tensor rotate(
    const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor x1 = x.narrow(-1, 0, half);
  const at::Tensor x2 = x.narrow(-1, half, half);
  return at::cat({x1 * cos - x2 * sin, x2 * cos + x1 * sin}, -1);
}

} // namespace

RMSNormImpl::RMSNormImpl(std::int64_t d_model) {
  weight = register_parameter("weight", at::ones({d_model}));
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return at::rms_norm(
             x.to(at::kFloat), {x.size(-1)}, weight.to(at::kFloat), kNormEps)
      .to(x.scalar_type());
}

GroupedQueryAttentionImpl::GroupedQueryAttentionImpl(const ModelShape& shape)
    : num_heads_(shape.num_heads), num_kv_heads_(shape.num_kv_heads) {
  const std::int64_t d_head = shape.d_model / num_heads_;
  qkv = register_module(
      "qkv",
      linear_without_bias(
          shape.d_model, (num_heads_ + 2 * num_kv_heads_) * d_head));
  out = register_module(
      "out", linear_without_bias(num_heads_ * d_head, shape.d_model));
}

at::Tensor GroupedQueryAttentionImpl::forward(
    const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const std::int64_t num_rotated = num_heads_ + num_kv_heads_;
  const at::Tensor heads =
      qkv(x).view({batch, seq, num_rotated + num_kv_heads_, -1});
  const at::Tensor rotated = rotate(
      heads.narrow(2, 0, num_rotated), cos.unsqueeze(1), sin.unsqueeze(1));

  const std::int64_t group = num_heads_ / num_kv_heads_;
  const auto for_each_query_head = [group](const at::Tensor& kv) {
    return group == 1 ? kv : kv.repeat_interleave(group, 1);
  };
  const at::Tensor q = rotated.narrow(2, 0, num_heads_).transpose(1, 2);
  const at::Tensor k = for_each_query_head(
      rotated.narrow(2, num_heads_, num_kv_heads_).transpose(1, 2));
  const at::Tensor v = for_each_query_head(
      heads.narrow(2, num_rotated, num_kv_heads_).transpose(1, 2));
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0, /*is_causal=*/true);
  return out(mixed.transpose(1, 2).reshape({batch, seq, -1}));
}

SwiGLUImpl::SwiGLUImpl(const ModelShape& shape) {
  gate_up = register_module(
      "gate_up", linear_without_bias(shape.d_model, 2 * shape.d_ff));
  down =
      register_module("down", linear_without_bias(shape.d_ff, shape.d_model));
}

at::Tensor SwiGLUImpl::forward(const at::Tensor& x) {
  const auto parts = gate_up(x).chunk(2, -1);
  return down(at::silu(parts[0]) * parts[1]);
}

DecoderBlockImpl::DecoderBlockImpl(const ModelShape& shape) {
  attention_norm = register_module("attention_norm", RMSNorm(shape.d_model));
  attention = register_module("attention", GroupedQueryAttention(shape));
  ff_norm = register_module("ff_norm", RMSNorm(shape.d_model));
  ff = register_module("ff", SwiGLU(shape));
}

at::Tensor DecoderBlockImpl::forward(
    const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor attended = x + attention(attention_norm(x), cos, sin);
  return attended + ff(ff_norm(attended));
}

DecoderImpl::DecoderImpl(const ModelShape& shape) {
  embedding = register_module(
      "embedding", torch::nn::Embedding(shape.vocab_size, shape.d_model));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    layers->push_back(DecoderBlock(shape));
  }
  norm = register_module("norm", RMSNorm(shape.d_model));
  if (!shape.tied) {
    output_head = register_module(
        "output_head", linear_without_bias(shape.d_model, shape.vocab_size));
  }

  const std::int64_t half = shape.d_model / shape.num_heads / 2;
  const at::Tensor angles = at::outer(
      at::arange(shape.max_seq, at::kDouble),
      at::pow(kRotaryBase, at::arange(half, at::kDouble) / -half));
  rotary_cos = register_buffer("rotary_cos", angles.cos().to(at::kFloat));
  rotary_sin = register_buffer("rotary_sin", angles.sin().to(at::kFloat));

  // The residual stream is a sum of 2 * num_layers projections.
  const double residual_std =
      kInitStd / std::sqrt(2.0 * static_cast<double>(shape.num_layers));
  for (const auto& item : named_parameters()) {
    const bool residual = item.key().ends_with("attention.out.weight") ||
                          item.key().ends_with("ff.down.weight");
    if (item.value().dim() > 1) {
      torch::nn::init::normal_(
          item.value(), 0, residual ? residual_std : kInitStd);
    }
  }
}

at::Tensor DecoderImpl::forward(const at::Tensor& tokens) {
  const std::int64_t seq = tokens.size(1);
  if (seq > rotary_cos.size(0)) {
    throw UsageError(
        "decoder: " + std::to_string(seq) +
        " positions, but the rotary tables hold " +
        std::to_string(rotary_cos.size(0)) + ": raise ModelShape::max_seq");
  }
  at::Tensor x = embedding(tokens);
  // Sharding leaves buffers in float32; a product with them would, too.
  const at::Tensor cos = rotary_cos.narrow(0, 0, seq).to(x.scalar_type());
  const at::Tensor sin = rotary_sin.narrow(0, 0, seq).to(x.scalar_type());
  for (const auto& layer : *layers) {
    x = layer->as<DecoderBlock>()->forward(x, cos, sin);
  }
  x = norm(x);
  return output_head ? output_head(x) : at::linear(x, embedding->weight);
}

} // namespace fsdp
