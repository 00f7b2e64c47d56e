#include "train/models/language_model.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <mutex>
#include <string>

#include "fsdp/error.h"
#include "train/models/decoder.h"
#include "train/models/simple_transformer.h"

namespace fsdp {
namespace {

template <typename Holder>
LanguageModel wrap(const ModelShape& shape, Holder holder) {
  LanguageModel model;
  model.shape = shape;
  model.module = holder.ptr();
  for (const at::Tensor& parameter : model.module->parameters()) {
    model.num_parameters += parameter.numel();
  }
  for (const auto& layer : *holder->layers) {
    model.blocks.push_back(layer);
  }
  model.forward = [holder](const at::Tensor& tokens) mutable {
    return holder->forward(tokens);
  };
  return model;
}

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw ConfigError("model shape: " + what);
  }
}

} // namespace

void check_shape(const ModelShape& shape) {
  require(
      shape.vocab_size > 0 && shape.d_model > 0 && shape.num_layers > 0 &&
          shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.d_ff > 0 &&
          shape.max_seq > 0,
      "every size must be at least 1");
  require(
      shape.d_model % shape.num_heads == 0,
      std::to_string(shape.num_heads) + " heads do not divide d_model " +
          std::to_string(shape.d_model));
  if (shape.kind == ModelKind::kDecoder) {
    require(
        shape.num_heads % shape.num_kv_heads == 0,
        std::to_string(shape.num_kv_heads) +
            " key and value heads do not divide " +
            std::to_string(shape.num_heads) + " heads");
    require(
        shape.d_model / shape.num_heads % 2 == 0,
        "rotary positions need an even head size, got " +
            std::to_string(shape.d_model / shape.num_heads));
  }
}

LanguageModel make_model(const ModelShape& shape, std::uint64_t seed) {
  check_shape(shape);
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  at::manual_seed(seed);
  return shape.kind == ModelKind::kSimpleTransformer
             ? wrap(shape, SimpleTransformer(shape))
             : wrap(shape, Decoder(shape));
}

} // namespace fsdp
