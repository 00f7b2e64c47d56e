#pragma once
// A stack of post-norm transformer layers without a mask, name for name and
// shape for shape the module that PyTorch users write with
// nn.MultiheadAttention(batch_first=True).

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "fsdp/hooked.h"
#include "train/presets.h"

namespace fsdp {

/// Self attention with the parameters of nn.MultiheadAttention: in_proj_weight,
/// in_proj_bias, out_proj.weight, out_proj.bias.
struct SelfAttentionImpl : torch::nn::Module {
  SelfAttentionImpl(std::int64_t d_model, std::int64_t num_heads);
  at::Tensor forward(const at::Tensor& x); // [batch, seq, d_model], both

  at::Tensor in_proj_weight; // [3 * d_model, d_model]: q, k, v
  at::Tensor in_proj_bias;
  torch::nn::Linear out_proj{nullptr};

 private:
  std::int64_t num_heads_;
};
TORCH_MODULE(SelfAttention);

struct TransformerLayerImpl : torch::nn::Module {
  explicit TransformerLayerImpl(const ModelShape& shape);
  at::Tensor forward(const at::Tensor& x);

  SelfAttention self_attn{nullptr};
  torch::nn::Sequential ff{nullptr};
  torch::nn::LayerNorm norm1{nullptr};
  torch::nn::LayerNorm norm2{nullptr};
};
FSDP_MODULE(TransformerLayer);

struct SimpleTransformerImpl : torch::nn::Module {
  explicit SimpleTransformerImpl(const ModelShape& shape);
  /// int64 tokens [batch, seq] to logits [batch, seq, vocab_size].
  at::Tensor forward(const at::Tensor& tokens);

  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::Linear output_head{nullptr};
};
FSDP_MODULE(SimpleTransformer);

} // namespace fsdp
