#include "train/models/simple_transformer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

namespace fsdp {

SelfAttentionImpl::SelfAttentionImpl(
    std::int64_t d_model, std::int64_t num_heads)
    : num_heads_(num_heads) {
  in_proj_weight =
      register_parameter("in_proj_weight", at::empty({3 * d_model, d_model}));
  in_proj_bias = register_parameter("in_proj_bias", at::zeros({3 * d_model}));
  out_proj = register_module("out_proj", torch::nn::Linear(d_model, d_model));
  torch::nn::init::xavier_uniform_(in_proj_weight);
  torch::nn::init::zeros_(out_proj->bias);
}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const std::int64_t d_model = x.size(2);
  const at::Tensor qkv =
      at::linear(x, in_proj_weight, in_proj_bias)
          .view({batch, seq, 3, num_heads_, d_model / num_heads_})
          .permute({2, 0, 3, 1, 4}); // [3, batch, heads, seq, d_head]
  const at::Tensor mixed =
      at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
  return out_proj(mixed.transpose(1, 2).reshape({batch, seq, d_model}));
}

TransformerLayerImpl::TransformerLayerImpl(const ModelShape& shape) {
  self_attn = register_module(
      "self_attn", SelfAttention(shape.d_model, shape.num_heads));
  ff = register_module(
      "ff",
      torch::nn::Sequential(
          torch::nn::Linear(shape.d_model, shape.d_ff),
          torch::nn::GELU(),
          torch::nn::Linear(shape.d_ff, shape.d_model)));
  const torch::nn::LayerNormOptions norm({shape.d_model});
  norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
  norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
}

at::Tensor TransformerLayerImpl::forward(const at::Tensor& x) {
  const at::Tensor attended = norm1(x + self_attn(x));
  return norm2(attended + ff->forward(attended));
}

SimpleTransformerImpl::SimpleTransformerImpl(const ModelShape& shape) {
  embedding = register_module(
      "embedding", torch::nn::Embedding(shape.vocab_size, shape.d_model));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < shape.num_layers; ++i) {
    layers->push_back(TransformerLayer(shape));
  }
  output_head = register_module(
      "output_head", torch::nn::Linear(shape.d_model, shape.vocab_size));
}

at::Tensor SimpleTransformerImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = embedding(tokens);
  for (const auto& layer : *layers) {
    x = layer->as<TransformerLayer>()->forward(x);
  }
  return output_head(x);
}

} // namespace fsdp
