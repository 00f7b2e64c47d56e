// Every figure that the source documents print, to its digits.

#include "plan/seed_tables.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::plan {
namespace {

using nlohmann::json;

const json& printed() {
  static const json data =
      json::parse(std::ifstream(FSDP_PLAN_DATA "/seed_tables.json"));
  return data;
}

/// As the documents print numbers.
std::string digits(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

TEST(SeedTables, HaveTheModelsFigures) {
  const json& expected = printed().at("seed_model");
  const SeedModel model = seed_tables().model;
  EXPECT_EQ(model.num_params, expected.at("parameters"));
  EXPECT_EQ(model.num_tensors, expected.at("state_dict_tensors"));
  EXPECT_EQ(
      digits(model.fp32_bytes / 1e6, 1), digits(expected.at("fp32_mb"), 1));
  EXPECT_EQ(
      digits(model.with_adam_bytes / 1e6, 1),
      digits(expected.at("with_adam_mb"), 1));
}

TEST(SeedTables, HaveTheMemoryOfAGpu) {
  const json& expected = printed().at("memory_per_gpu_mb");
  const std::vector<SeedMemory> rows = seed_tables().memory;
  ASSERT_EQ(rows.size(), expected.size());
  ASSERT_EQ(rows.size(), 12U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = expected[i];
    EXPECT_EQ(name_of(rows[i].strategy), row.at("strategy").get<std::string>());
    EXPECT_EQ(rows[i].gpus, row.at("gpus"));
    EXPECT_EQ(digits(rows[i].parameters / 1e6, 1), digits(row.at("params"), 1));
    EXPECT_EQ(digits(rows[i].gradients / 1e6, 1), digits(row.at("grads"), 1));
    EXPECT_EQ(
        digits(rows[i].optimizer / 1e6, 1), digits(row.at("optimizer"), 1));
    EXPECT_EQ(digits(rows[i].total() / 1e6, 1), digits(row.at("total"), 1));
  }
}

TEST(SeedTables, HaveTheTrafficOfAStepBesideARings) {
  const json& expected = printed().at("communication_gb_per_step");
  const SeedTables tables = seed_tables();
  ASSERT_EQ(tables.traffic.size(), 3U);
  for (const SeedTraffic& row : tables.traffic) {
    EXPECT_EQ(
        digits(row.counted / 1e9, 4),
        digits(expected.at(std::string(name_of(row.strategy))), 4));
    // 7/8 of 4 bytes a parameter and collective, an all-reduce being two.
    const double collectives = row.strategy == Strategy::kFullShard ? 3 : 2;
    EXPECT_DOUBLE_EQ(row.ring, collectives * 9'868'560 * 4 * 7 / 8);
  }
}

TEST(SeedTables, GiveTheDocumentsAdvice) {
  const json& expected = printed().at("recommendation");
  const std::vector<SeedAdvice> rows = seed_tables().advice;
  ASSERT_EQ(rows.size(), expected.size());
  ASSERT_EQ(rows.size(), 5U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = expected[i];
    const SeedAdvice& advice = rows[i];
    EXPECT_EQ(advice.num_params, row.at("model_params"));
    EXPECT_EQ(advice.gpus, row.at("gpus"));
    EXPECT_EQ(advice.memory_gb, row.at("gpu_memory_gb"));
    EXPECT_EQ(digits(advice.no_shard_gb, 0), digits(row.at("no_shard_gb"), 0));
    EXPECT_EQ(
        digits(advice.shard_grad_op_gb, 1),
        digits(row.at("shard_grad_op_gb"), 1));
    EXPECT_EQ(
        digits(advice.full_shard_gb, 1), digits(row.at("full_shard_gb"), 1));
    EXPECT_EQ(advice.no_shard_gb <= advice.memory_gb, row.at("fits")[0]);
    EXPECT_EQ(advice.shard_grad_op_gb <= advice.memory_gb, row.at("fits")[1]);
    EXPECT_EQ(advice.full_shard_gb <= advice.memory_gb, row.at("fits")[2]);
    EXPECT_EQ(advice.recommendation, row.at("recommend").get<std::string>());
    EXPECT_FALSE(advice.reason.empty());
  }
  EXPECT_EQ(seed_advice(1e9, 8, 80).recommendation, "NO_SHARD");
}

TEST(SeedTables, HaveTheBlocksInDepth) {
  const json& expected = printed().at("in_depth");
  const SeedBlocks blocks = seed_tables().blocks;
  EXPECT_EQ(blocks.bytes_per_param, expected.at("bytes_per_param"));
  EXPECT_EQ(digits(blocks.total_gb, 0), digits(expected.at("total_gb"), 0));
  EXPECT_EQ(
      digits(blocks.per_rank_gb, 0),
      digits(expected.at("per_rank_gb_on_8"), 0));
  EXPECT_EQ(blocks.block_params, expected.at("block_params"));
  EXPECT_EQ(
      digits(blocks.block_gb, 2), digits(expected.at("block_bf16_gb"), 2));
  EXPECT_EQ(
      digits(blocks.traffic_over_ddp, 1),
      digits(expected.at("traffic_vs_ddp"), 1));
}

} // namespace
} // namespace fsdp::plan
