#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>
#include <string>

#include "fsdp/error.h"
#include "fsdp/meta_init.h"
#include "support/ranks.h"
#include "train/models/decoder.h"
#include "train/models/language_model.h"

namespace fsdp {
namespace {

ModelShape small_decoder() {
  return {
      .vocab_size = 64,
      .d_model = 32,
      .num_layers = 3,
      .num_heads = 4,
      .num_kv_heads = 2,
      .d_ff = 64,
      .max_seq = 16};
}

at::Tensor parameter(const LanguageModel& model, const std::string& name) {
  return model.module->named_parameters()[name];
}

TEST(Models, SeedPresetHasItsParameterCount) {
  EXPECT_EQ(make_model(find_preset("seed").shape, 0).num_parameters, 9'868'560);
}

TEST(Models, BytesPresetHasAboutThreeMillionParameters) {
  const auto count = make_model(find_preset("bytes").shape, 0).num_parameters;
  EXPECT_GT(count, 2'500'000);
  EXPECT_LT(count, 3'500'000);
}

TEST(Models, EveryPresetHasASoundShape) {
  for (const Preset& preset : presets()) {
    EXPECT_NO_THROW(check_shape(preset.shape)) << preset.name;
  }
}

TEST(Models, TyingSavesTheOutputHead) {
  ModelShape tied = small_decoder();
  tied.tied = true;
  EXPECT_EQ(
      make_model(small_decoder(), 0).num_parameters -
          make_model(tied, 0).num_parameters,
      64 * 32);
}

TEST(Models, WeightsDependOnShapeAndSeedOnly) {
  const LanguageModel first = make_model(small_decoder(), 7);
  const LanguageModel again = make_model(small_decoder(), 7);
  const LanguageModel other = make_model(small_decoder(), 8);
  const std::string name = "layers.1.ff.down.weight";
  EXPECT_TRUE(parameter(first, name).equal(parameter(again, name)));
  EXPECT_FALSE(parameter(first, name).equal(parameter(other, name)));
}

TEST(Models, DecoderInitScalesTheResidualProjections) {
  ModelShape shape = small_decoder();
  shape.d_model = 256;
  shape.num_layers = 8;
  const LanguageModel model = make_model(shape, 1);
  const auto std_of = [&](const std::string& name) {
    return parameter(model, name).std().item<double>();
  };
  EXPECT_NEAR(std_of("embedding.weight"), 0.02, 0.001);
  EXPECT_NEAR(std_of("layers.3.attention.qkv.weight"), 0.02, 0.001);
  EXPECT_NEAR(std_of("layers.3.attention.out.weight"), 0.02 / 4, 0.0005);
  EXPECT_NEAR(std_of("layers.3.ff.down.weight"), 0.02 / 4, 0.0005);
}

TEST(Models, SimpleTransformerInitIsPyTorchs) {
  const LanguageModel model = make_model(find_preset("seed").shape, 1);
  const auto largest = [&](const std::string& name) {
    return parameter(model, name).abs().max().item<double>();
  };
  // Uniform up to sqrt(6 / (fan in + fan out)), and up to 1 / sqrt(fan in).
  const double xavier = std::sqrt(6.0 / (256 + 768));
  EXPECT_NEAR(
      largest("layers.0.self_attn.in_proj_weight"), xavier, 0.01 * xavier);
  EXPECT_EQ(largest("layers.0.self_attn.in_proj_bias"), 0);
  EXPECT_EQ(largest("layers.0.self_attn.out_proj.bias"), 0);
  EXPECT_NEAR(largest("layers.0.ff.0.weight"), 1.0 / 16, 1e-3);
  EXPECT_NEAR(
      parameter(model, "embedding.weight").std().item<double>(), 1, 0.01);
}

TEST(Models, DecoderDoesNotLookAhead) {
  const LanguageModel model = make_model(small_decoder(), 0);
  at::Tensor tokens = at::zeros({1, 12}, at::kLong);
  const at::Tensor before = model.forward(tokens);
  tokens[0][8] = 5;
  const at::Tensor after = model.forward(tokens);
  EXPECT_TRUE(before.narrow(1, 0, 8).equal(after.narrow(1, 0, 8)));
  EXPECT_FALSE(before.narrow(1, 8, 4).equal(after.narrow(1, 8, 4)));
}

TEST(Models, DecoderComputesInBFloat16WithFloat32RotaryTables) {
  const LanguageModel model = make_model(small_decoder(), 0);
  const at::Tensor tokens = at::zeros({2, 12}, at::kLong);
  const at::Tensor expected = model.forward(tokens);
  for (at::Tensor& p : model.module->parameters()) {
    p.set_data(p.to(at::kBFloat16));
  }
  const at::Tensor got = model.forward(tokens);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LT(
      (got.to(at::kFloat) - expected).abs().max().item<double>(),
      0.02 * expected.abs().max().item<double>());
}

TEST(Models, RMSNormComputesInFloat32) {
  // In bfloat16 the sum of 4096 ones would stop at 256.
  RMSNorm norm(4096);
  const at::Tensor x = at::zeros({1, 4096}, at::kBFloat16).add_(1);
  const at::Tensor got = norm(x);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.to(at::kFloat).max().item<double>(), 1);
}

TEST(Models, DecoderNamesASequenceLongerThanItsTables) {
  const LanguageModel model = make_model(small_decoder(), 0);
  try {
    model.forward(at::zeros({1, 17}, at::kLong));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "decoder: 17 positions, but the rotary tables hold 16: raise "
        "ModelShape::max_seq");
  }
}

TEST(Models, ContradictoryShapesAreNamed) {
  ModelShape shape = small_decoder();
  shape.num_kv_heads = 3;
  try {
    make_model(shape, 0);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "model shape: 3 key and value heads do not divide 4 heads");
  }
}

LanguageModel model_without_memory(const ModelShape& shape) {
  const MetaInitGuard guard;
  return make_model(shape, 7);
}

TEST(Models, HaveTheSameWeightsFromAMetaStart) {
  ModelShape tied = small_decoder();
  tied.tied = true;
  ModelShape simple = small_decoder();
  simple.kind = ModelKind::kSimpleTransformer;
  for (const ModelShape& shape : {small_decoder(), tied, simple}) {
    const LanguageModel eager = make_model(shape, 7);
    const LanguageModel plain = model_without_memory(shape);
    EXPECT_TRUE(plain.module->parameters()[0].is_meta());
    EXPECT_EQ(plain.num_parameters, eager.num_parameters);
    materialize(*plain.module, 7);
    for (const auto& item : eager.module->named_parameters()) {
      EXPECT_TRUE(at::equal(parameter(plain, item.key()), item.value()))
          << item.key();
    }
    for (const auto& item : eager.module->named_buffers()) {
      EXPECT_TRUE(
          at::equal(plain.module->named_buffers()[item.key()], item.value()))
          << item.key();
    }
    for (const int size : {1, 2, 3, 4, 8}) {
      testing::with_ranks(size, [&](const ProcessGroup& world) {
        const LanguageModel model = model_without_memory(shape);
        shard_model(model, {.mesh = testing::shard_mesh(world)});
        materialize(*model.module, 7);
        for (const auto& [name, value] : full_parameters(*model.module)) {
          EXPECT_TRUE(at::equal(value, parameter(eager, name))) << name;
        }
      });
    }
  }
}

} // namespace
} // namespace fsdp
