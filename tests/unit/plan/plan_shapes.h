#pragma once
// Models and devices made by hand, independent of the catalogs.

#include <cstdint>
#include <string>

#include "plan/device.h"
#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan::testing {

/// H100's figures, rounded so that sums can be done by hand.
inline Device round_device() {
  Device device;
  device.name = "round";
  device.peak_bf16 = 1000e12;
  device.peak_fp16 = 1000e12;
  device.peak_tf32 = 500e12;
  device.peak_fp32 = 50e12;
  device.peak_fp8 = 2000e12;
  device.best_matmul_bf16 = 800e12;
  device.memory_bytes = 80e9;
  device.memory_bandwidth = 3000e9;
  device.node_bandwidth = 450e9;
  device.host_bandwidth = 60e9;
  device.network_bandwidth = 50e9;
  device.devices_per_node = 8;
  return device;
}

inline Cluster round_cluster(std::int64_t nodes, std::int64_t per_node) {
  return {round_device(), nodes, per_node};
}

/// Blocks of 12 hidden^2 parameters (one tensor each), a root of vocab x
/// hidden.
inline ModelShape round_model(
    std::int64_t layers, std::int64_t hidden, std::int64_t vocab = 32'000) {
  Transformer transformer;
  transformer.name = "round";
  transformer.layers = layers;
  transformer.hidden = hidden;
  transformer.heads = hidden / 128;
  transformer.kv_heads = transformer.heads;
  transformer.head_dim = 128;
  transformer.ffn = 4 * hidden;
  transformer.vocab = vocab;
  ModelShape model;
  model.name = "round";
  model.root = {"root", {{"embedding", {vocab, hidden}}}};
  for (std::int64_t i = 0; i < layers; ++i) {
    model.blocks.push_back(
        {"blocks." + std::to_string(i), {{"weight", {12 * hidden, hidden}}}});
  }
  model.transformer = transformer;
  return model;
}

inline Job bf16_job(Strategy strategy = Strategy::kFullShard) {
  Job job;
  job.strategy = strategy;
  job.precision.compute = DType::kBFloat16;
  return job;
}

} // namespace fsdp::plan::testing
