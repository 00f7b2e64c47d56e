// A model of which only the size is known.

#include <algorithm>
#include <cmath>
#include <string>

#include "fsdp/error.h"
#include "plan/model.h"

namespace fsdp::plan {

namespace {

constexpr std::int64_t kFewest = 100'000;
constexpr std::int64_t kMost = 1'000'000'000'000'000;

std::int64_t round_to(double value, std::int64_t unit) {
  const auto units = static_cast<std::int64_t>(
      std::llround(value / static_cast<double>(unit)));
  return std::max<std::int64_t>(units, 1) * unit;
}

std::int64_t vocab_at(double num_params) {
  return num_params < 3e6 ? 256 : num_params < 1e8 ? 10'000 : 32'000;
}

/// Hidden size over layers: 64 in GPT-2 small, 128 in Llama 2 7B and GPT-3.
double aspect_at(double num_params) {
  return num_params < 1e9 ? 64 : 128;
}

} // namespace

Transformer assumed_transformer(std::int64_t num_params) {
  if (num_params < kFewest || num_params > kMost) {
    throw ConfigError(
        "a model of " + std::to_string(num_params) +
        " parameters: expected 100000 to 1000000000000000");
  }
  const auto target = static_cast<double>(num_params);
  const double aspect = aspect_at(target);

  Transformer t;
  t.name = "assumed-" + std::to_string(num_params);
  t.vocab = vocab_at(target);
  t.layers = std::max<std::int64_t>(
      2, std::llround(std::cbrt(target / (12 * aspect * aspect))));
  const auto layers = static_cast<double>(t.layers);
  const auto vocab = static_cast<double>(t.vocab);
  // 12 layers hidden^2 + 2 vocab hidden = target
  const double hidden =
      (std::sqrt(vocab * vocab + 12 * layers * target) - vocab) / (12 * layers);
  t.head_dim = hidden < 512 ? 16 : hidden < 1536 ? 64 : 128;
  t.hidden = round_to(hidden, t.head_dim);
  t.heads = t.hidden / t.head_dim;
  t.kv_heads = t.heads;
  t.mlp = Mlp::kGated;
  t.norm = Norm::kRmsNorm;
  t.bias = false;
  t.fused_qkv = false;
  t.tied = false;
  // What the rest leaves goes into the feed-forward, which takes any width.
  const auto h = static_cast<double>(t.hidden);
  const double rest = target - 2 * vocab * h - h - layers * (4 * h * h + 2 * h);
  t.ffn = round_to(rest / (3 * layers * h), 4);
  return t;
}

} // namespace fsdp::plan
