// Predicted step times beside published ones (tests/data/plan/published_runs.csv).
// A row's own figures go in; its speed is what is compared.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/compute_time.h"
#include "plan/schedule.h"
#include "plan/simulate.h"

namespace fsdp::plan {
namespace {

using Row = std::map<std::string, std::string>;

/// The fields of a line; a field in quotes may hold commas.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<Row> read_rows() {
  std::ifstream file(FSDP_PLAN_DATA "/published_runs.csv");
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = fields_of(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = fields_of(line);
    Row row;
    for (std::size_t i = 0; i < names.size(); ++i) {
      row[names[i]] = i < fields.size() ? fields[i] : "";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::int64_t count_of(
    const Row& row, const char* name, std::int64_t otherwise = 0) {
  const std::string& text = row.at(name);
  return text.empty() ? otherwise : std::stoll(text);
}

/// MPT: LayerNorm, GELU, learned positions, a tied head, no biases; else Llama.
ModelShape model_of_row(const Row& row) {
  const bool is_mpt = holds(row.at("model"), "MPT");
  Transformer t;
  t.name = row.at("model");
  t.layers = count_of(row, "layers");
  t.hidden = count_of(row, "hidden");
  t.heads = count_of(row, "heads");
  t.kv_heads = count_of(row, "kv_heads", t.heads);
  t.head_dim = t.hidden / t.heads;
  t.ffn = count_of(row, "ffn");
  t.vocab = count_of(row, "vocab");
  t.positions = is_mpt ? count_of(row, "seq_len") : 0;
  t.mlp = is_mpt ? Mlp::kPlain : Mlp::kGated;
  t.norm = is_mpt ? Norm::kLayerNorm : Norm::kRmsNorm;
  t.norm_bias = false;
  t.bias = false;
  t.fused_qkv = is_mpt;
  t.tied = is_mpt;
  return model_of(t);
}

Cluster cluster_of_row(const Row& row) {
  Cluster cluster;
  cluster.device = find_device(row.at("gpu_type"));
  const std::int64_t gpus = count_of(row, "gpus");
  cluster.devices_per_node = std::min(gpus, count_of(row, "gpus_per_node", 8));
  cluster.nodes = gpus / cluster.devices_per_node;
  return cluster;
}

Job job_of_row(const Row& row) {
  const std::string& source = row.at("source");
  const std::string& dtype = row.at("dtype");
  Job job;
  job.strategy = count_of(row, "hsdp_replicate", 1) > 1 ? Strategy::kHybridShard
                                                        : Strategy::kFullShard;
  job.shard_size = count_of(row, "fsdp_degree", count_of(row, "gpus"));
  job.precision.compute = DType::kBFloat16;
  job.precision.reduce =
      holds(dtype, "PURE") ? DType::kBFloat16 : DType::kFloat32;
  job.precision.fp8_matmuls = holds(dtype, "float8") || holds(dtype, "fp8");
  job.micro_batch = count_of(row, "local_batch");
  job.seq_len = count_of(row, "seq_len");
  job.accumulation = count_of(row, "grad_accum", 1);
  job.compiled = row.at("compile") == "yes";
  // The kernels of the software that was run.
  job.flash_generation = holds(source, "llm-foundry") ? 1 : 2;
  const std::string& checkpointing = row.at("act_ckpt");
  job.checkpointing = checkpointing.starts_with("full") ? Checkpointing::kFull
                      : checkpointing.starts_with("selective")
                          ? Checkpointing::kSelective
                          : Checkpointing::kNone;
  return job;
}

double predicted_seconds(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  check(job, cluster);
  return simulate(
             make_schedule(
                 model, job, cluster, compute_times(model, job, cluster)),
             false)
      .seconds;
}

struct Errors {
  double sum = 0;
  int count = 0;

  void add(double error) {
    sum += std::abs(error);
    ++count;
  }
  double mean() const { return sum / count; }
};

void print(const Row& row, double measured, double predicted) {
  std::printf(
      "%s %-10s %-24s x%-4s seq %-6s batch %-3s x%-2s %-9s %8.3f s %8.3f s "
      "%+6.1f %%\n",
      row.at("id").c_str(),
      row.at("model").c_str(),
      row.at("gpu_type").c_str(),
      row.at("gpus").c_str(),
      row.at("seq_len").c_str(),
      row.at("local_batch").c_str(),
      row.at("grad_accum").c_str(),
      row.at("act_ckpt").substr(0, 9).c_str(),
      measured,
      predicted,
      100 * (predicted / measured - 1));
}

TEST(PublishedRuns, StepTimesAreWithinEightPercentInTheMean) {
  std::map<std::string, Errors> by_source;
  Errors all;
  for (const Row& row : read_rows()) {
    if (row.at("tier") != "A") {
      continue;
    }
    const double measured = std::stod(row.at("derived_step_s"));
    const double predicted = predicted_seconds(
        model_of_row(row), job_of_row(row), cluster_of_row(row));
    print(row, measured, predicted);
    const double error = predicted / measured - 1;
    all.add(error);
    by_source[row.at("source")].add(error);
  }
  ASSERT_EQ(all.count, 109);
  ASSERT_EQ(by_source.size(), 6U);
  for (const auto& [source, errors] : by_source) {
    std::printf(
        "%5.2f %% of %3d rows: %s\n",
        100 * errors.mean(),
        errors.count,
        source.c_str());
    EXPECT_LE(errors.mean(), 0.15) << source;
  }
  std::printf("%5.2f %% of all\n", 100 * all.mean());
  EXPECT_LE(all.mean(), 0.08);
}

/// Communication-bound: batches of one sequence over a network whose bandwidth
/// the source does not state. 7.5 GB/s a device is fitted to these rows.
TEST(PublishedRuns, CommunicationBoundRunsFollowOneNetworkConstant) {
  Errors errors;
  for (const Row& row : read_rows()) {
    if (!holds(row.at("source"), "YaFSDP") ||
        !holds(row.at("strategy"), "FSDP1")) {
      continue;
    }
    const ModelShape model = model_of_row(row);
    Cluster cluster = cluster_of_row(row);
    cluster.device.network_bandwidth = 7.5e9 / 0.9;
    Job job = job_of_row(row);
    // "full on 10 of 80": so many blocks are checkpointed.
    const std::string& text = row.at("act_ckpt");
    ComputeTimes compute = compute_times(model, job, cluster);
    int checkpointed = 0;
    if (std::sscanf(text.c_str(), "full on %d", &checkpointed) == 1) {
      for (std::size_t i = static_cast<std::size_t>(checkpointed);
           i < compute.blocks.size();
           ++i) {
        compute.blocks[i].recompute = 0;
      }
    }
    const double measured = std::stod(row.at("derived_step_s"));
    const double predicted =
        simulate(make_schedule(model, job, cluster, compute), false).seconds;
    print(row, measured, predicted);
    errors.add(predicted / measured - 1);
  }
  ASSERT_GE(errors.count, 5);
  std::printf("%5.2f %% of %d rows\n", 100 * errors.mean(), errors.count);
  EXPECT_LE(errors.mean(), 0.06);
}

} // namespace
} // namespace fsdp::plan
