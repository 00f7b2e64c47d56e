#pragma once
// The one table of model shapes and of how each is trained unless told
// otherwise.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

enum class ModelKind : std::uint8_t {
  kSimpleTransformer, ///< post-norm encoder layers, learned embedding
  kDecoder,           ///< Llama style
};

struct ModelShape {
  ModelKind kind = ModelKind::kDecoder;
  std::int64_t vocab_size = 256;
  std::int64_t d_model = 256;
  std::int64_t num_layers = 4;
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 4; ///< decoder only; divides num_heads
  std::int64_t d_ff = 1024;
  std::int64_t max_seq = 512; ///< decoder only: rows of the rotary tables
  bool tied = false; ///< decoder only: the output head is the embedding
};

enum class OptimizerKind : std::uint8_t { kAdamW, kAdam, kSGD };
enum class ComputeType : std::uint8_t { kFloat32, kBFloat16 };

/// How a preset is trained where the user does not say otherwise.
struct TrainDefaults {
  /// One fixed batch of random tokens instead of a corpus.
  bool fixed_random_batch = false;
  bool needs_data = false; ///< the default text would not fit
  std::int64_t steps = 0;  ///< 0: no limit
  double minutes = 0;      ///< of training; 0: no limit
  std::int64_t batch = 8;  ///< sequences per optimizer step, over all ranks
  std::int64_t seq = 128;
  ComputeType dtype = ComputeType::kFloat32;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 1e-3;
  std::int64_t warmup = 0; ///< steps
  double min_lr = 1e-3;
  double weight_decay = 0;
  double beta2 = 0.999; ///< of AdamW and Adam
  double clip = 0;      ///< 0: gradients are not clipped
};

struct Preset {
  std::string_view name;
  std::string_view summary;
  ModelShape shape;
  TrainDefaults defaults;
};

std::span<const Preset> presets();

/// Throws ConfigError naming the valid presets and the nearest one.
const Preset& find_preset(std::string_view name);

} // namespace fsdp
