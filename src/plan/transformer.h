#pragma once
// The numbers that describe a transformer. Everything else that the planner
// needs of a model follows from them.

#include <cstdint>
#include <string>

namespace fsdp::plan {

enum class Norm : std::uint8_t { kLayerNorm, kRmsNorm };

enum class Mlp : std::uint8_t {
  kPlain, ///< up, activation, down
  kGated, ///< up, gate, down (SwiGLU)
};

struct Transformer {
  std::string name;
  std::int64_t layers = 0; ///< blocks of the decoder, or of the only stack
  /// Of an encoder-decoder (T5): blocks of the encoder; the decoder's have a
  /// cross attention, too.
  std::int64_t encoder_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0; ///< equal to heads without grouped queries
  std::int64_t head_dim = 0; ///< hidden / heads but for T5
  std::int64_t ffn = 0;      ///< width between up and down, of one expert
  std::int64_t vocab = 0;
  std::int64_t positions = 0; ///< rows of a learned position table; 0: none
  /// Rows of the table of relative positions in the first block of each stack
  /// (T5); 0: none.
  std::int64_t relative_buckets = 0;
  std::int64_t experts = 0; ///< 0: no mixture
  std::int64_t experts_per_token = 0;
  Mlp mlp = Mlp::kPlain;
  Norm norm = Norm::kLayerNorm;
  bool norm_bias = true;  ///< a LayerNorm's
  bool bias = true;       ///< of the linear layers inside the blocks
  bool qkv_bias = false;  ///< of q, k and v, where the others have none (Qwen2)
  bool head_bias = false; ///< of the output head
  bool fused_qkv = true; ///< one projection of q, k and v (rows are shared out)
  bool fused_gate_up = false; ///< one projection of gate and up
  bool final_norm = true;
  bool tied = true; ///< the head is the embedding
  bool causal = true;
};

} // namespace fsdp::plan
