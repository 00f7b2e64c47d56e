// The golden numbers of GOLD, on every world size and backend.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <array>
#include <memory>

#include "fsdp/clip_grad.h"
#include "fsdp/fully_shard.h"
#include "fsdp/optim.h"
#include "support/gold.h"
#include "support/ranks.h"

namespace fsdp {
namespace {

using testing::Gold;

struct Golden {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)> optimizer;
  double max_norm; ///< 0: no clipping
  std::array<double, 4> losses;
  std::array<double, 4> norms;
  std::array<double, 4> sums;
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all{
      {"sgd",
       [](auto params) {
         return std::make_unique<SGD>(std::move(params), SGDOptions{.lr = 0.1});
       },
       0,
       {0.52115343, 0.50193406, 0.48512166, 0.46993964},
       {0.44644362, 0.41604921, 0.39376106, 0.37903282},
       {0.27702562, 0.01188827, 0.21089376, 0.05134927}},
      {"sgd with clipping",
       [](auto params) {
         return std::make_unique<SGD>(std::move(params), SGDOptions{.lr = 0.1});
       },
       0.05,
       {0.52115343, 0.51893015, 0.51672447, 0.51453602},
       {0.44644362, 0.44288794, 0.43940501, 0.43599683},
       {0.20204350, 0.01701334, 0.14814439, 0.15898586}},
      {"sgd with momentum",
       [](auto params) {
         return std::make_unique<SGD>(
             std::move(params), SGDOptions{.lr = 0.1, .momentum = 0.9});
       },
       0,
       {0.52115343, 0.50193406, 0.47011833, 0.43270741},
       {0.44644362, 0.41604921, 0.37252009, 0.34432956},
       {0.38179234, 0.00519578, 0.29863230, -0.10291127}},
      {"adamw",
       [](auto params) {
         return std::make_unique<AdamW>(
             std::move(params), AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
       },
       0,
       {0.52115343, 0.50220033, 0.48338853, 0.46480248},
       {0.44644362, 0.43443277, 0.42808553, 0.42696100},
       {0.31506075, -0.02244138, 0.22068551, 0.09576041}}};
  return all;
}

double mean_over_ranks(const ProcessGroup& world, double value) {
  world.communicator().all_reduce(
      &value, 1, DType::kFloat64, ReduceOp::kAvg, "test");
  return value;
}

void train_and_compare(
    const Golden& golden, const ProcessGroup& world, bool one_unit) {
  Gold model;
  const auto mesh = testing::shard_mesh(world);
  if (!one_unit) {
    fully_shard(model->first, {.mesh = mesh});
    fully_shard(model->second, {.mesh = mesh});
  }
  fully_shard(model, {.mesh = mesh});
  const auto optimizer = golden.optimizer(model->parameters());
  const auto rows = testing::gold_rows_of(world.rank(), world.size());
  for (std::size_t step = 0; step < 4; ++step) {
    const auto loss = at::mse_loss(model(rows.x), rows.y);
    loss.backward();
    const double norm =
        clip_grad_norm_(*model, golden.max_norm > 0 ? golden.max_norm : 1e9);
    optimizer->step();
    optimizer->zero_grad();
    EXPECT_NEAR(
        mean_over_ranks(world, loss.item<double>()), golden.losses[step], 1e-6);
    EXPECT_NEAR(norm, golden.norms[step], 1e-6);
  }
  const auto full = full_parameters(*model);
  ASSERT_EQ(full.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(full[i].second.sum().item<double>(), golden.sums[i], 1e-6)
        << full[i].first;
  }
}

class GoldOnRanks
    : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GoldOnRanks, GivesTheGoldenNumbers) {
  const auto& [backend, size] = GetParam();
  for (const auto& golden : goldens()) {
    for (const bool one_unit : {true, false}) {
      SCOPED_TRACE(golden.name);
      testing::with_ranks(
          size,
          [&](const ProcessGroup& world) {
            train_and_compare(golden, world, one_unit);
          },
          backend);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    GoldOnRanks,
    ::testing::Combine(
        ::testing::Values("inproc", "shm", "gloo"),
        ::testing::Values(1, 2, 3, 4, 6, 8)),
    [](const auto& ranks) {
      return std::get<0>(ranks.param) + "_" +
             std::to_string(std::get<1>(ranks.param));
    });

} // namespace
} // namespace fsdp
