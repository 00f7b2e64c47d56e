// config.json of each model type, against the published numbers of parameters.

#include "plan/config_json.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "fsdp/error.h"
#include "plan/model.h"
#include "refusal.h"

namespace fsdp::plan {
namespace {

using nlohmann::json;

json llama3_8b() {
  return {
      {"model_type", "llama"},
      {"num_hidden_layers", 32},
      {"hidden_size", 4096},
      {"num_attention_heads", 32},
      {"num_key_value_heads", 8},
      {"intermediate_size", 14'336},
      {"vocab_size", 128'256},
      {"tie_word_embeddings", false}};
}

json changed(json config, const json& changes) {
  config.update(changes);
  return config;
}

json gpt2() {
  return {
      {"model_type", "gpt2"},
      {"n_layer", 12},
      {"n_embd", 768},
      {"n_head", 12},
      {"n_inner", nullptr},
      {"n_positions", 1024},
      {"vocab_size", 50'257}};
}

json t5_11b() {
  return {
      {"model_type", "t5"},
      {"num_layers", 24},
      {"d_model", 1024},
      {"num_heads", 128},
      {"d_kv", 128},
      {"d_ff", 65'536},
      {"vocab_size", 32'128},
      {"relative_attention_num_buckets", 32}};
}

json mpt_7b() {
  return {
      {"model_type", "mpt"},
      {"n_layers", 32},
      {"d_model", 4096},
      {"n_heads", 32},
      {"expansion_ratio", 4},
      {"vocab_size", 50'432},
      {"max_seq_len", 2048},
      {"no_bias", true},
      {"attn_config", {{"attn_type", "multihead_attention"}, {"alibi", true}}}};
}

json gpt_neox_1b() {
  return {
      {"model_type", "gpt_neox"},
      {"num_hidden_layers", 24},
      {"hidden_size", 2048},
      {"num_attention_heads", 16},
      {"intermediate_size", 8192},
      {"vocab_size", 50'304},
      {"tie_word_embeddings", false}};
}

std::int64_t num_params(const json& config) {
  return model_of(parse_config_json("c.json", config.dump())).num_params();
}

TEST(ConfigJson, GivesThePublishedNumbersOfParameters) {
  EXPECT_EQ(num_params(llama3_8b()), 8'030'261'248); // Llama 3 8B
  EXPECT_EQ(
      num_params(changed(
          llama3_8b(), {{"model_type", "mistral"}, {"vocab_size", 32'000}})),
      7'241'732'096); // Mistral 7B v0.1
  EXPECT_EQ(
      num_params(changed(
          llama3_8b(),
          {{"model_type", "mixtral"},
           {"vocab_size", 32'000},
           {"num_local_experts", 8},
           {"num_experts_per_tok", 2}})),
      46'702'792'704); // Mixtral 8x7B
  EXPECT_EQ(
      num_params(
          {{"model_type", "qwen2"},
           {"num_hidden_layers", 28},
           {"hidden_size", 3584},
           {"num_attention_heads", 28},
           {"num_key_value_heads", 4},
           {"intermediate_size", 18'944},
           {"vocab_size", 152'064}}),
      7'615'616'512); // Qwen2 7B
  EXPECT_EQ(
      num_params(
          {{"model_type", "qwen2"},
           {"num_hidden_layers", 24},
           {"hidden_size", 896},
           {"num_attention_heads", 14},
           {"num_key_value_heads", 2},
           {"intermediate_size", 4864},
           {"vocab_size", 151'936},
           {"tie_word_embeddings", true}}),
      494'032'768); // Qwen2 0.5B
  EXPECT_EQ(num_params(gpt2()), 124'439'808);
  EXPECT_EQ(num_params(t5_11b()), 11'307'321'344);
  EXPECT_EQ(num_params(mpt_7b()), 6'649'286'656);      // MPT 7B
  EXPECT_EQ(num_params(gpt_neox_1b()), 1'414'647'808); // Pythia 1.4B
}

TEST(ConfigJson, ReadsWhatIsOptional) {
  const Transformer heads = parse_config_json(
      "c.json", changed(llama3_8b(), {{"head_dim", 64}}).dump());
  EXPECT_EQ(heads.head_dim, 64);
  json no_kv = llama3_8b();
  no_kv.erase("num_key_value_heads");
  EXPECT_EQ(parse_config_json("c.json", no_kv.dump()).kv_heads, 32);
  const Transformer gated = parse_config_json(
      "c.json",
      changed(t5_11b(), {{"feed_forward_proj", "gated-gelu"}}).dump());
  EXPECT_EQ(gated.mlp, Mlp::kGated);
  const Transformer learned = parse_config_json(
      "c.json", changed(mpt_7b(), {{"attn_config", nullptr}}).dump());
  EXPECT_EQ(learned.positions, 2048);
  EXPECT_EQ(
      parse_config_json("c.json", changed(gpt2(), {{"n_inner", 100}}).dump())
          .ffn,
      100);
}

void expect_refused(const json& config, const std::string& text) {
  testing::expect_throws<ConfigError>(
      [&] { parse_config_json("c.json", config.dump()); }, text);
}

TEST(ConfigJson, NamesFileFieldAndModelTypeOfWhatIsWrong) {
  json missing = llama3_8b();
  missing.erase("hidden_size");
  expect_refused(
      missing,
      "config 'c.json': 'hidden_size' of model type 'llama' is missing: "
      "expected a whole number");
  expect_refused(
      changed(llama3_8b(), {{"vocab_size", "many"}}),
      "config 'c.json': 'vocab_size' of model type 'llama' is \"many\": "
      "expected a whole number");
  expect_refused(
      changed(gpt2(), {{"n_layer", 12.5}}),
      "config 'c.json': 'n_layer' of model type 'gpt2' is 12.5: expected a "
      "whole number");
  expect_refused(
      changed(gpt2(), {{"n_embd", 18'446'744'073'709'551'615U}}),
      "config 'c.json': 'n_embd' of model type 'gpt2' is "
      "18446744073709551615: expected a whole number");
  expect_refused(
      changed(gpt2(), {{"n_head", 7}}),
      "config 'c.json': 'n_head' of model type 'gpt2' is 7: expected a "
      "divisor of 768");
  expect_refused(
      changed(gpt2(), {{"n_head", 1}, {"n_embd", INT64_MAX}}),
      "config 'c.json': 'n_embd' of model type 'gpt2' is "
      "9223372036854775807: expected 1 to 2305843009213693951");
  expect_refused(
      changed(llama3_8b(), {{"tie_word_embeddings", 1}}),
      "config 'c.json': 'tie_word_embeddings' of model type 'llama' is 1: "
      "expected true or false");
  expect_refused(
      changed(llama3_8b(), {{"mlp_bias", true}}),
      "config 'c.json': 'mlp_bias' of model type 'llama' differs from "
      "'attention_bias': expected both");
  json no_bias = mpt_7b();
  no_bias.erase("no_bias");
  expect_refused(
      no_bias,
      "config 'c.json': 'no_bias' of model type 'mpt' is missing: expected "
      "true or false");
  expect_refused(
      changed(mpt_7b(), {{"attn_config", 3}}),
      "config 'c.json': 'attn_config' of model type 'mpt' is 3: expected an "
      "object");
  expect_refused(
      changed(mpt_7b(), {{"expansion_ratio", 2}}),
      "config 'c.json': 'expansion_ratio' of model type 'mpt' is not 4: "
      "expected 4");
  expect_refused(
      changed(t5_11b(), {{"feed_forward_proj", 1}}),
      "config 'c.json': 'feed_forward_proj' of model type 't5' is 1: expected "
      "a text");
  expect_refused(
      changed(gpt_neox_1b(), {{"attention_bias", false}}),
      "config 'c.json': 'attention_bias' of model type 'gpt_neox' is false: "
      "expected true");
}

TEST(ConfigJson, NamesTheNearestModelType) {
  expect_refused(
      changed(llama3_8b(), {{"model_type", "lama"}}),
      "config 'c.json': model type 'lama' is unknown: the nearest is 'llama'; "
      "known are llama, mistral, mixtral, qwen2, gpt2, gpt_neox, t5, mpt");
  json none = llama3_8b();
  none.erase("model_type");
  expect_refused(
      none,
      "config 'c.json': 'model_type' is missing or no text: expected llama, "
      "gpt2, ...");
}

TEST(ConfigJson, RefusesFilesThatAreNone) {
  for (const char* text : {"", "[1, 2]", "{\"a\": ", "3"}) {
    testing::expect_throws<DataError>(
        [&] { parse_config_json("c.json", text); },
        "config 'c.json' is no JSON object: expected a config.json");
  }
  testing::expect_throws<DataError>(
      [] { read_config_json("/gone/config.json"); },
      "config '/gone/config.json' cannot be read: expected a file");
  const std::string folder = std::filesystem::temp_directory_path().string();
  testing::expect_throws<DataError>(
      [&] { read_config_json(folder); },
      "config '" + folder + "' cannot be read: expected a file");
}

} // namespace
} // namespace fsdp::plan
