#pragma once
// tests/data/plan/published_runs.json as the planner's own inputs. Nothing here
// looks at a row's id: what a run had is said by its columns and by its
// software.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "plan/constants.h"
#include "plan/device.h"
#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan::testing {

class PublishedRun {
 public:
  explicit PublishedRun(nlohmann::json row) : row_(std::move(row)) {}

  std::string text(const char* key) const {
    return row_.value(key, std::string());
  }

  bool holds(const char* key, const char* part) const {
    return text(key).find(part) != std::string::npos;
  }

  /// `otherwise` where the count is missing or a range.
  std::int64_t count(const char* key, std::int64_t otherwise) const {
    const bool is_one = row_.contains(key) && row_[key].is_number_integer();
    return is_one ? row_[key].get<std::int64_t>() : otherwise;
  }

  bool has(const char* key) const { return row_.contains(key); }
  double number(const char* key) const { return row_.value(key, 0.0); }

  /// Why the planner cannot describe it; empty if it can.
  std::string beyond_the_planner() const {
    for (const char* key : {"tp_degree", "cp_degree", "pp_degree"}) {
      if (count(key, 1) > 1) {
        return "uses tensor, context or pipeline parallelism";
      }
    }
    for (const char* key :
         {"layers", "ffn", "gpus", "seq_len", "local_batch"}) {
      if (count(key, 0) == 0) {
        return std::string("states no one ") + key;
      }
    }
    return "";
  }

  bool is_mpt() const { return holds("model", "MPT"); }
  bool is_llm_foundry() const { return holds("source", "llm-foundry"); }

  /// MPT: LayerNorm, GELU, learned positions, a tied head, no biases; else
  /// Llama.
  ModelShape model() const {
    Transformer t;
    t.name = text("model");
    t.layers = count("layers", 0);
    t.hidden = count("hidden", 0);
    t.heads = count("heads", 0);
    t.kv_heads = count("kv_heads", t.heads);
    t.head_dim = t.hidden / t.heads;
    t.ffn = count("ffn", 0);
    t.vocab = count("vocab", 0);
    t.positions = is_mpt() ? count("seq_len", 0) : 0;
    t.mlp = is_mpt() ? Mlp::kPlain : Mlp::kGated;
    t.norm = is_mpt() ? Norm::kLayerNorm : Norm::kRmsNorm;
    t.norm_bias = false;
    t.bias = false;
    t.fused_qkv = is_mpt();
    t.tied = is_mpt();
    return model_of(t);
  }

  /// YaFSDP's table does not state its network; see kUnstatedNetwork.
  Cluster cluster() const {
    Cluster cluster;
    cluster.device = find_device(text("gpu_type"));
    const std::int64_t gpus = count("gpus", 0);
    cluster.devices_per_node = std::min(gpus, count("gpus_per_node", 8));
    cluster.nodes = gpus / cluster.devices_per_node;
    if (holds("source", "YaFSDP")) {
      cluster.device.network_bandwidth = kUnstatedNetwork;
    }
    return cluster;
  }

  Job job() const {
    Job job;
    job.shard_size = count("fsdp_degree", 0);
    job.runtime =
        holds("strategy", "FSDP1") ? Runtime::kFsdp1 : Runtime::kFsdp2;
    job.precision.compute = DType::kBFloat16;
    job.precision.reduce =
        holds("dtype", "PURE") ? DType::kBFloat16 : DType::kFloat32;
    job.precision.fp8_matmuls = holds("dtype", "float8");
    job.micro_batch = count("local_batch", 0);
    job.seq_len = count("seq_len", 0);
    job.accumulation = count("grad_accum", 1);
    job.compiled = row_.value("compile", false);
    set_checkpointing(job);
    if (is_llm_foundry()) {
      // Its defaults: the Triton kernel of FlashAttention 1, a fused loss, two
      // metrics of training.
      job.flash_generation = 1;
      job.fused_loss = true;
      job.logit_metrics = 2;
    }
    return job;
  }

 private:
  /// "none", "full", "full on 10 of 80 layers", "selective(op)", "selective".
  void set_checkpointing(Job& job) const {
    const std::string kind = text("act_ckpt");
    job.checkpointing = kind.starts_with("full") ? Checkpointing::kFull
                        : kind.starts_with("selective")
                            ? Checkpointing::kSelective
                            : Checkpointing::kNone;
    int blocks = 0;
    if (std::sscanf(kind.c_str(), "full on %d", &blocks) == 1) {
      job.checkpointed_blocks = blocks;
    }
  }

  nlohmann::json row_;
};

inline std::vector<PublishedRun> published_runs(const char* path) {
  std::vector<PublishedRun> runs;
  std::ifstream file(path);
  nlohmann::json rows = nlohmann::json::parse(file);
  for (nlohmann::json& row : rows) {
    runs.emplace_back(std::move(row));
  }
  return runs;
}

} // namespace fsdp::plan::testing
