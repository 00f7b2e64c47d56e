#pragma once
// A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention,
// SwiGLU, tied or untied output head.

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "fsdp/hooked.h"
#include "train/presets.h"

namespace fsdp {

/// Normalises in float32 whatever the input's dtype, and returns that dtype.
struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(std::int64_t d_model);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
};
TORCH_MODULE(RMSNorm);

/// Causal attention; query head h reads key and value head
/// h / (num_heads / num_kv_heads).
struct GroupedQueryAttentionImpl : torch::nn::Module {
  explicit GroupedQueryAttentionImpl(const ModelShape& shape);
  /// x [batch, seq, d_model]; cos and sin [seq, d_head / 2].
  at::Tensor forward(
      const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

  torch::nn::Linear qkv{nullptr}; // rows: query heads, key heads, value heads
  torch::nn::Linear out{nullptr};

 private:
  std::int64_t num_heads_;
  std::int64_t num_kv_heads_;
};
TORCH_MODULE(GroupedQueryAttention);

struct SwiGLUImpl : torch::nn::Module {
  explicit SwiGLUImpl(const ModelShape& shape);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate_up{nullptr}; // rows: gate, up
  torch::nn::Linear down{nullptr};
};
TORCH_MODULE(SwiGLU);

struct DecoderBlockImpl : torch::nn::Module {
  explicit DecoderBlockImpl(const ModelShape& shape);
  at::Tensor forward(
      const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

  RMSNorm attention_norm{nullptr};
  GroupedQueryAttention attention{nullptr};
  RMSNorm ff_norm{nullptr};
  SwiGLU ff{nullptr};
};
FSDP_MODULE(DecoderBlock);

struct DecoderImpl : torch::nn::Module {
  explicit DecoderImpl(const ModelShape& shape);
  /// int64 tokens [batch, seq] to logits [batch, seq, vocab_size]. Throws
  /// UsageError if seq is longer than the rotary tables (shape.max_seq).
  at::Tensor forward(const at::Tensor& tokens);

  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers;
  RMSNorm norm{nullptr};
  torch::nn::Linear output_head{nullptr}; // null if tied
  at::Tensor rotary_cos;                  // buffers, [max_seq, d_head / 2]
  at::Tensor rotary_sin;
};
FSDP_MODULE(Decoder);

} // namespace fsdp
