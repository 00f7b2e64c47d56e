#include "train/presets.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/nearest_name.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr TrainDefaults kSeedLoop{
    .fixed_random_batch = true,
    .steps = 30,
    .batch = 4,
    .seq = 128,
    .optimizer = OptimizerKind::kAdam,
    .lr = 3e-4,
    .min_lr = 3e-4,
};

constexpr std::array kPresets{
    Preset{
        .name = "seed",
        .summary = "SimpleTransformer, 9.87 M parameters, one fixed batch",
        .shape =
            {.kind = ModelKind::kSimpleTransformer,
             .vocab_size = 10'000,
             .d_model = 256,
             .num_layers = 6,
             .num_heads = 4,
             .num_kv_heads = 4,
             .d_ff = 1024},
        .defaults = kSeedLoop},
    Preset{
        .name = "mid",
        .summary = "SimpleTransformer, 35.5 M parameters, one fixed batch",
        .shape =
            {.kind = ModelKind::kSimpleTransformer,
             .vocab_size = 10'000,
             .d_model = 512,
             .num_layers = 8,
             .num_heads = 8,
             .num_kv_heads = 8,
             .d_ff = 2048},
        .defaults = kSeedLoop},
    Preset{
        .name = "bytes",
        .summary = "decoder over bytes, 3.1 M parameters, real text",
        .shape =
            {.vocab_size = 256,
             .d_model = 256,
             .num_layers = 4,
             .num_heads = 4,
             .num_kv_heads = 2,
             .d_ff = 704,
             .max_seq = 1024},
        .defaults =
            {.minutes = 3,
             .batch = 4,
             .seq = 128,
             .lr = 2e-3,
             .warmup = 50,
             .min_lr = 1e-4,
             .weight_decay = 0.1,
             .beta2 = 0.95,
             .clip = 1}},
    Preset{
        .name = "words",
        .summary = "decoder over GPT-2's tokens, 30 M parameters, tied",
        .shape =
            {.vocab_size = 50'304,
             .d_model = 384,
             .num_layers = 6,
             .num_heads = 6,
             .num_kv_heads = 2,
             .d_ff = 1024,
             .max_seq = 1024,
             .tied = true},
        .defaults =
            {.needs_data = true,
             .minutes = 60,
             .batch = 8,
             .seq = 256,
             .lr = 1e-3,
             .warmup = 100,
             .min_lr = 1e-4,
             .weight_decay = 0.1,
             .beta2 = 0.95,
             .clip = 1}},
    Preset{
        .name = "tiny",
        .summary = "decoder over bytes, 0.1 M parameters, for trying out",
        .shape =
            {.vocab_size = 256,
             .d_model = 64,
             .num_layers = 2,
             .num_heads = 4,
             .num_kv_heads = 2,
             .d_ff = 128,
             .max_seq = 256},
        .defaults =
            {.steps = 100,
             .batch = 8,
             .seq = 64,
             .lr = 3e-3,
             .warmup = 10,
             .min_lr = 3e-4,
             .weight_decay = 0.1,
             .beta2 = 0.95,
             .clip = 1}},
};

} // namespace

std::span<const Preset> presets() {
  return kPresets;
}

const Preset& find_preset(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  if (found != kPresets.end()) {
    return *found;
  }
  std::vector<std::string> names;
  std::string list;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  throw ConfigError(
      "--preset '" + std::string(name) + "' is unknown: use one of " + list +
      "; the nearest is '" + nearest_name(name, names) + "'");
}

} // namespace fsdp
