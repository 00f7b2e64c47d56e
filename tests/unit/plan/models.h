#pragma once
// Small models and clusters for the planner's tests.

#include <cstdint>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

/// Linear(3, 5), tanh, Linear(5, 2) as one unit that is not the root.
inline ModelShape gold() {
  ModelShape model;
  model.name = "gold";
  model.root.name = "root";
  model.blocks.push_back(
      {"mlp",
       {{"0.weight", {5, 3}},
        {"0.bias", {5}},
        {"2.weight", {2, 5}},
        {"2.bias", {2}}}});
  return model;
}

/// Rows that few numbers of ranks divide, and a tensor of one element.
inline ModelShape uneven() {
  ModelShape model;
  model.name = "uneven";
  model.root = {"root", {{"embed", {131, 48}}, {"norm", {48}}}};
  for (int i = 0; i < 5; ++i) {
    model.blocks.push_back(
        {"layers." + std::to_string(i),
         {{"a", {9 + i, 7, 2}}, {"b", {33, 5}}, {"c", {1}}, {"d", {16}}}});
  }
  return model;
}

inline Cluster cluster_of(std::int64_t nodes, std::int64_t per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = per_node;
  return cluster;
}

inline constexpr Precision kBf16{
    .master = DType::kFloat32,
    .compute = DType::kBFloat16,
    .reduce = DType::kFloat32};

} // namespace fsdp::plan
