#pragma once
// What the trainer needs of a model, whichever it is.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/fully_shard.h"
#include "train/presets.h"

namespace fsdp {

struct LanguageModel {
  ModelShape shape;
  std::int64_t num_parameters = 0;
  std::shared_ptr<torch::nn::Module> module;              ///< the root
  std::vector<std::shared_ptr<torch::nn::Module>> blocks; ///< in forward order
  /// int64 tokens [batch, seq] to logits [batch, seq, vocab_size].
  std::function<at::Tensor(const at::Tensor& tokens)> forward;
};

/// Builds the model with weights that depend on `shape` and `seed` only, in
/// float32. Seeds the default generator; ranks that are threads take turns.
LanguageModel make_model(const ModelShape& shape, std::uint64_t seed);

/// Throws ConfigError if `shape` contradicts itself (heads that do not divide
/// d_model, ...).
void check_shape(const ModelShape& shape);

/// [collective] fully_shard on every block, then on the root.
void shard_model(const LanguageModel& model, const FullyShardOptions& options);

} // namespace fsdp
