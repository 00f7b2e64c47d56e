#include "cli/seed_tables_text.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "plan/seed_tables.h"

namespace fsdp::cli {

namespace {

using plan::SeedTables;

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string mega(double bytes) {
  return fixed(bytes / 1e6, 1);
}

std::string giga(double bytes) {
  return fixed(bytes / 1e9, 4);
}

std::string in_billions(double number) {
  return fixed(number / 1e9, 0) + "B";
}

/// "9,868,560"
std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) {
    text.insert(static_cast<std::size_t>(i), ",");
  }
  return text;
}

std::string model_text(const plan::SeedModel& model) {
  return "the seed model\n  parameters " + with_commas(model.num_params) +
         ", all trainable, in " + std::to_string(model.num_tensors) +
         " tensors\n  memory (FP32) " + mega(model.fp32_bytes) +
         " MB\n  memory (with Adam) " + mega(model.with_adam_bytes) + " MB\n";
}

std::string memory_text(const SeedTables& tables) {
  Table table(
      {"strategy",
       "GPUs",
       "params (MB)",
       "grads (MB)",
       "optim (MB)",
       "total (MB)"});
  for (const plan::SeedMemory& row : tables.memory) {
    table.add(
        {std::string(name_of(row.strategy)),
         std::to_string(row.gpus),
         mega(row.parameters),
         mega(row.gradients),
         mega(row.optimizer),
         mega(row.total())});
  }
  return "\nmemory of a GPU, FP32 and Adam\n" + table.text();
}

std::string traffic_text(const SeedTables& tables) {
  Table table({"strategy", "volume (GB)", "sent in a ring of 8 (GB)"});
  for (const plan::SeedTraffic& row : tables.traffic) {
    table.add(
        {std::string(name_of(row.strategy)),
         giga(row.counted),
         giga(row.ring)});
  }
  return "\ncommunication of a step\n" + table.text() +
         "  The first column counts two copies of the parameters for each "
         "collective, and\n  no gather for shard_grad_op; in a ring of N a "
         "rank sends (N-1)/N of a copy for\n  a gather or a reduce-scatter, "
         "and twice that for an all-reduce.\n";
}

std::string advice_text(const SeedTables& tables) {
  Table table(
      {"model", "GPUs", "GB each", "no_shard", "shard_grad_op", "full_shard"});
  std::string reasons;
  for (const plan::SeedAdvice& row : tables.advice) {
    const auto cell = [&](double gb, int decimals) {
      return fixed(gb, decimals) + (gb <= row.memory_gb ? " fits" : " no");
    };
    table.add(
        {in_billions(row.num_params),
         std::to_string(row.gpus),
         fixed(row.memory_gb, 0),
         cell(row.no_shard_gb, 0),
         cell(row.shard_grad_op_gb, 1),
         cell(row.full_shard_gb, 1)});
    reasons += "  " + in_billions(row.num_params) + " on " +
               std::to_string(row.gpus) + ": " +
               std::string(row.recommendation) + " (" +
               std::string(row.reason) + ")\n";
  }
  return "\nwhich strategy: GB of model state on each GPU\n" + table.text() +
         reasons;
}

std::string blocks_text(const plan::SeedBlocks& blocks) {
  return "\n7B parameters in 32 blocks, on 8 GPUs\n  " +
         fixed(blocks.bytes_per_param, 0) + " bytes a parameter, " +
         fixed(blocks.total_gb, 0) + " GB in all, " +
         fixed(blocks.per_rank_gb, 0) + " GB a rank\n  a block of " +
         fixed(blocks.block_params / 1e6, 0) + "M is " +
         fixed(blocks.block_gb, 2) + " GB in bf16\n  traffic " +
         fixed(blocks.traffic_over_ddp, 1) + " times that of DDP\n";
}

} // namespace

std::string seed_tables_text() {
  const SeedTables tables = plan::seed_tables();
  return model_text(tables.model) + memory_text(tables) + traffic_text(tables) +
         advice_text(tables) + blocks_text(tables.blocks);
}

std::string seed_tables_json() {
  const SeedTables tables = plan::seed_tables();
  nlohmann::ordered_json json;
  json["model"] = {
      {"parameters", tables.model.num_params},
      {"tensors", tables.model.num_tensors},
      {"fp32_bytes", tables.model.fp32_bytes},
      {"with_adam_bytes", tables.model.with_adam_bytes}};
  for (const plan::SeedMemory& row : tables.memory) {
    json["memory"].push_back(
        {{"strategy", name_of(row.strategy)},
         {"gpus", row.gpus},
         {"parameters", row.parameters},
         {"gradients", row.gradients},
         {"optimizer", row.optimizer},
         {"total", row.total()}});
  }
  for (const plan::SeedTraffic& row : tables.traffic) {
    json["traffic"].push_back(
        {{"strategy", name_of(row.strategy)},
         {"counted", row.counted},
         {"ring_of_8", row.ring}});
  }
  for (const plan::SeedAdvice& row : tables.advice) {
    json["advice"].push_back(
        {{"parameters", row.num_params},
         {"gpus", row.gpus},
         {"memory_gb", row.memory_gb},
         {"no_shard_gb", row.no_shard_gb},
         {"shard_grad_op_gb", row.shard_grad_op_gb},
         {"full_shard_gb", row.full_shard_gb},
         {"recommendation", row.recommendation},
         {"reason", row.reason}});
  }
  json["blocks"] = {
      {"bytes_per_param", tables.blocks.bytes_per_param},
      {"total_gb", tables.blocks.total_gb},
      {"per_rank_gb", tables.blocks.per_rank_gb},
      {"block_params", tables.blocks.block_params},
      {"block_gb", tables.blocks.block_gb},
      {"traffic_over_ddp", tables.blocks.traffic_over_ddp}};
  return json.dump(2) + "\n";
}

} // namespace fsdp::cli
