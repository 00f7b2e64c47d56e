#include "plan/catalog.h"

#include <span>

#include "fsdp/error.h"
#include "plan/find_by_name.h"

namespace fsdp::plan {

namespace {

// GPT-2's layout: learned positions, biases everywhere, a tied head.
Transformer gpt(
    const char* name,
    std::int64_t layers,
    std::int64_t hidden,
    std::int64_t heads,
    std::int64_t vocab,
    std::int64_t positions) {
  return {
      .name = name,
      .layers = layers,
      .hidden = hidden,
      .heads = heads,
      .kv_heads = heads,
      .head_dim = hidden / heads,
      .ffn = 4 * hidden,
      .vocab = vocab,
      .positions = positions};
}

// src/train/models/simple_transformer.cpp; layer norms come after each part.
Transformer simple_transformer(
    const char* name,
    std::int64_t layers,
    std::int64_t hidden,
    std::int64_t heads) {
  Transformer t = gpt(name, layers, hidden, heads, 10'000, /*positions=*/0);
  t.head_bias = true;
  t.final_norm = false;
  t.tied = false;
  t.causal = false;
  return t;
}

// src/train/models/decoder.cpp
Transformer decoder(Transformer t) {
  t.kv_heads = 2;
  t.head_dim = 64;
  t.mlp = Mlp::kGated;
  t.norm = Norm::kRmsNorm;
  t.bias = false;
  t.fused_gate_up = true;
  return t;
}

Transformer gpt2(
    const char* name,
    std::int64_t layers,
    std::int64_t hidden,
    std::int64_t heads) {
  return gpt(name, layers, hidden, heads, 50'257, 1024);
}

// MosaicML's benchmark of them: GPT's layout and a position for each token of
// a sequence, 2,048 unless the run is longer.
Transformer mpt(
    const char* name,
    std::int64_t layers,
    std::int64_t hidden,
    std::int64_t heads) {
  return gpt(name, layers, hidden, heads, 50'368, 2048);
}

Transformer llama(
    const char* name,
    std::int64_t layers,
    std::int64_t hidden,
    std::int64_t heads,
    std::int64_t kv_heads,
    std::int64_t ffn,
    std::int64_t vocab) {
  return {
      .name = name,
      .layers = layers,
      .hidden = hidden,
      .heads = heads,
      .kv_heads = kv_heads,
      .head_dim = hidden / heads,
      .ffn = ffn,
      .vocab = vocab,
      .mlp = Mlp::kGated,
      .norm = Norm::kRmsNorm,
      .bias = false,
      .fused_qkv = false,
      .tied = false};
}

Transformer mixtral_8x7b() {
  Transformer t = llama("mixtral-8x7b", 32, 4096, 32, 8, 14'336, 32'000);
  t.experts = 8;
  t.experts_per_token = 2;
  return t;
}

Transformer t5_11b() {
  return {
      .name = "t5-11b",
      .layers = 24,
      .encoder_layers = 24,
      .hidden = 1024,
      .heads = 128,
      .kv_heads = 128,
      .head_dim = 128,
      .ffn = 65'536,
      .vocab = 32'128,
      .relative_buckets = 32,
      .norm = Norm::kRmsNorm,
      .bias = false,
      .fused_qkv = false};
}

std::vector<Transformer> make_catalog() {
  return {
      simple_transformer("seed", 6, 256, 4),
      simple_transformer("mid", 8, 512, 8),
      decoder(
          {.name = "bytes",
           .layers = 4,
           .hidden = 256,
           .heads = 4,
           .ffn = 704,
           .vocab = 256,
           .tied = false}),
      decoder(
          {.name = "words",
           .layers = 6,
           .hidden = 384,
           .heads = 6,
           .ffn = 1024,
           .vocab = 50'304}),
      gpt2("gpt2", 12, 768, 12),
      gpt2("gpt2-medium", 24, 1024, 16),
      gpt2("gpt2-large", 36, 1280, 20),
      gpt2("gpt2-xl", 48, 1600, 25),
      gpt("gpt3-175b", 96, 12'288, 96, 50'257, 2048),
      llama("llama2-7b", 32, 4096, 32, 32, 11'008, 32'000),
      llama("llama2-13b", 40, 5120, 40, 40, 13'824, 32'000),
      llama("llama2-70b", 80, 8192, 64, 8, 28'672, 32'000),
      llama("llama3-8b", 32, 4096, 32, 8, 14'336, 128'256),
      llama("llama3-70b", 80, 8192, 64, 8, 28'672, 128'256),
      llama("llama3-405b", 126, 16'384, 128, 8, 53'248, 128'256),
      mixtral_8x7b(),
      t5_11b(),
      mpt("mpt-125m", 12, 768, 12),
      mpt("mpt-350m", 24, 1024, 16),
      mpt("mpt-760m", 24, 1536, 12),
      mpt("mpt-1b", 24, 2048, 16),
      mpt("mpt-7b", 32, 4096, 32),
      mpt("mpt-13b", 40, 5120, 40),
      mpt("mpt-30b", 48, 7168, 56),
      mpt("mpt-70b", 80, 8192, 64)};
}

const std::vector<Transformer>& catalog() {
  static const std::vector<Transformer> models = make_catalog();
  return models;
}

} // namespace

Transformer find_model(std::string_view name) {
  return find_by_name("model", std::span<const Transformer>(catalog()), name);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Transformer& model : catalog()) {
    names.push_back(model.name);
  }
  return names;
}

} // namespace fsdp::plan
