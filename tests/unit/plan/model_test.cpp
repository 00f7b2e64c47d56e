// Models by name, by size and by the names of their tensors.

#include "plan/model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "fsdp/error.h"
#include "plan/catalog.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const UnitShape& unit) {
  std::vector<std::string> names;
  for (const ParamShape& param : unit.params) {
    names.push_back(param.name);
  }
  return names;
}

TEST(Catalog, HasThePublishedNumbersOfParameters) {
  // Where they were published: the models' cards and papers; MosaicML's table
  // of throughput rounds to the digits that are compared below.
  const std::map<std::string, std::int64_t> published{
      {"seed", 9'868'560},
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},
      {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3-405b", 405'853'388'800},
      {"mixtral-8x7b", 46'702'792'704},
      {"t5-11b", 11'307'321'344}};
  for (const auto& [name, number] : published) {
    EXPECT_EQ(model_of(find_model(name)).num_params(), number) << name;
  }
  const std::map<std::string, double> rounded{
      {"mid", 35.5e6},
      {"bytes", 3.1e6},
      {"words", 30e6},
      {"gpt3-175b", 175e9},
      {"mpt-125m", 0.1253e9},
      {"mpt-350m", 0.3560e9},
      {"mpt-760m", 0.7605e9},
      {"mpt-1b", 1.3160e9},
      {"mpt-7b", 6.6589e9},
      {"mpt-13b", 12.8540e9},
      {"mpt-30b", 29.9752e9},
      {"mpt-70b", 64.8624e9}};
  for (const auto& [name, number] : rounded) {
    const auto counted =
        static_cast<double>(model_of(find_model(name)).num_params());
    // To half of the last digit that was printed.
    const double digit = name == "gpt3-175b" || name == "words" ? 1e9
                         : name.starts_with("mpt")              ? 1e5
                                                                : 1e5;
    EXPECT_NEAR(counted, number, digit / 2) << name;
  }
  EXPECT_EQ(model_names().size(), published.size() + rounded.size());
}

TEST(Catalog, FoldsCaseAndDashesAndNamesTheNearest) {
  EXPECT_EQ(find_model("LLaMA2_7B").name, "llama2-7b");
  testing::expect_throws<ConfigError>(
      [] { find_model("gpt2-x"); }, HasSubstr("the nearest is 'gpt2-xl'"));
  testing::expect_throws<ConfigError>(
      [] { find_model("lama3-8b"); }, HasSubstr("the nearest is 'llama3-8b'"));
  testing::expect_throws<ConfigError>(
      [] { find_model(""); }, HasSubstr("model '' is unknown"));
}

TEST(ModelOf, RegistersWhatTheRuntimesModelsDo) {
  const ModelShape seed = model_of(find_model("seed"));
  ASSERT_EQ(seed.blocks.size(), 6U);
  EXPECT_EQ(seed.root.params.size() + 6 * seed.blocks[0].params.size(), 75U);
  EXPECT_THAT(
      names_of(seed.root),
      ElementsAre("embedding.weight", "head.weight", "head.bias"));
  const ModelShape bytes = model_of(find_model("bytes"));
  EXPECT_THAT(
      names_of(bytes.blocks[0]),
      ElementsAre(
          "attention_norm.weight",
          "attention.qkv.weight",
          "attention.out.weight",
          "ff_norm.weight",
          "ff.gate_up.weight",
          "ff.down.weight"));
  EXPECT_THAT(bytes.blocks[0].params[1].shape, ElementsAre(512, 256));
  EXPECT_THAT(bytes.blocks[0].params[4].shape, ElementsAre(1408, 256));
}

TEST(ModelOf, GivesAnEncoderDecoderBothStacks) {
  const ModelShape t5 = model_of(find_model("t5-11b"));
  ASSERT_EQ(t5.blocks.size(), 48U);
  EXPECT_EQ(t5.blocks.front().name, "encoder.0");
  EXPECT_EQ(t5.blocks.back().name, "decoder.23");
  EXPECT_GT(t5.blocks.back().numel(), t5.blocks[1].numel());
  // The table of relative positions.
  EXPECT_EQ(t5.blocks[0].numel() - t5.blocks[1].numel(), 32 * 128);
  EXPECT_EQ(t5.blocks[24].numel() - t5.blocks[25].numel(), 32 * 128);
}

struct Wrong {
  void (*change)(Transformer&);
  const char* text;
};

TEST(ModelOf, RefusesWhatMakesNoModel) {
  const Wrong cases[]{
      {[](Transformer& t) { t.layers = 0; },
       "model 'gpt2': the number of layers is 0: expected at least 1"},
      {[](Transformer& t) { t.hidden = -4; },
       "model 'gpt2': the hidden size is -4: expected at least 1"},
      {[](Transformer& t) { t.kv_heads = 5; },
       "model 'gpt2': 5 key-value heads do not divide 12 heads"},
      {[](Transformer& t) { t.positions = -1; },
       "model 'gpt2': the number of positions is -1: expected 0 or more"},
      {[](Transformer& t) {
         t.experts = 4;
         t.experts_per_token = 5;
       },
       "model 'gpt2': 5 experts a token of 4: expected 1 to 4"},
      {[](Transformer& t) { t.layers = 2'000'000; },
       "model 'gpt2': 2000000 layers: expected at most 1000000"},
      {[](Transformer& t) {
         t.experts = 200'000;
         t.experts_per_token = 1;
       },
       "model 'gpt2': 200000 experts: expected at most 100000"},
      {[](Transformer& t) { t.vocab = 3'000'000'000'000; },
       "model 'gpt2': 2304000085842432 parameters: expected at most "
       "2000000000000000"},
      {[](Transformer& t) { t.ffn = INT64_MAX; },
       "the plan counts more than 9223372036854775807 bytes: lower the sizes "
       "of the model, the batch, the sequence or the accumulation"}};
  for (const Wrong& c : cases) {
    Transformer t = find_model("gpt2");
    c.change(t);
    testing::expect_throws<ConfigError>([&] { model_of(t); }, c.text);
  }
}

TEST(AssumedTransformer, HasAboutTheParametersAskedFor) {
  double worst = 0;
  for (double asked = 1e5; asked <= 1.001e15; asked *= 1.37) {
    const auto number = static_cast<std::int64_t>(std::min(asked, 1e15));
    const ModelShape model = model_of(assumed_transformer(number));
    const double error =
        std::abs(static_cast<double>(model.num_params()) / number - 1);
    worst = std::max(worst, error);
    EXPECT_LT(error, number < 1'000'000 ? 0.05 : 0.01) << number;
  }
  EXPECT_GT(worst, 0) << "nothing was compared";
  const Transformer t = assumed_transformer(7'000'000'000);
  EXPECT_NEAR(t.layers, 32, 1);
  EXPECT_NEAR(t.hidden, 4096, 128);
  EXPECT_NEAR(t.ffn, 11'008, 800);
}

TEST(AssumedTransformer, RefusesOtherSizes) {
  testing::expect_throws<ConfigError>(
      [] { assumed_transformer(99'999); },
      "a model of 99999 parameters: expected 100000 to 1000000000000000");
  testing::expect_throws<ConfigError>(
      [] { assumed_transformer(1'000'000'000'000'001); },
      "a model of 1000000000000001 parameters: expected 100000 to "
      "1000000000000000");
}

TEST(ModelOfTensors, GroupsByTheNumberInTheName) {
  const ModelShape model = model_of_tensors(
      "file",
      {{"model.layers.10.mlp.weight", {4, 3}},
       {"model.embed.weight", {7, 3}},
       {"model.layers.2.mlp.weight", {4, 3}},
       {"model.layers.2.experts.1.weight", {5}},
       {"lm_head.weight", {7, 3}},
       {"scale", {}}});
  EXPECT_THAT(
      names_of(model.root),
      ElementsAre("model.embed.weight", "lm_head.weight", "scale"));
  ASSERT_EQ(model.blocks.size(), 2U);
  EXPECT_EQ(model.blocks[0].name, "model.layers.2");
  EXPECT_EQ(model.blocks[1].name, "model.layers.10");
  EXPECT_EQ(model.blocks[0].numel(), 17);
  EXPECT_EQ(model.num_params(), 21 + 21 + 1 + 17 + 12);
  EXPECT_FALSE(model.transformer.has_value());
}

TEST(ModelOfTensors, PutsTheEncoderBeforeTheDecoder) {
  const ModelShape model = model_of_tensors(
      "file",
      {{"decoder.block.0.weight", {1}}, {"encoder.block.0.weight", {1}}});
  EXPECT_EQ(model.blocks[0].name, "encoder.block.0");
}

TEST(ModelOfTensors, RefusesNoneAndTooMany) {
  testing::expect_throws<ConfigError>(
      [] { model_of_tensors("file", {}); },
      "model 'file' has no tensors: expected at least one");
  testing::expect_throws<ConfigError>(
      [] {
        model_of_tensors("file", {{"a", {INT64_MAX}}, {"b", {1}}});
      },
      HasSubstr("the plan counts more than 9223372036854775807 bytes"));
}

} // namespace
} // namespace fsdp::plan
