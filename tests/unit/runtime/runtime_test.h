#pragma once
// What the tests of the runtime share: small modules that hold the same numbers
// each time they are made, batches, and comparison with the plain module.

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "support/ranks.h"
#include "support/throws.h"

namespace fsdp::testing {

/// A test for each (backend, number of ranks).
class OnRanks : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(ProcessGroup)>& body) const {
    with_ranks(size(), body, std::get<0>(GetParam()));
  }
};

inline std::string name_of_ranks(
    const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_" +
         std::to_string(std::get<1>(info.param));
}

/// The shared-memory engine on 1 to 8 ranks and the collective one on some.
inline std::vector<std::tuple<std::string, int>> all_ranks() {
  return {
      {"inproc", 1},
      {"inproc", 2},
      {"inproc", 3},
      {"inproc", 4},
      {"inproc", 8},
      {"gloo", 2},
      {"gloo", 3}};
}
inline std::vector<std::tuple<std::string, int>> two_engines(int size) {
  return {{"inproc", size}, {"gloo", size}};
}

/// V4: one parameter, weight * x.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(const at::Tensor& value)
      : weight(register_parameter("weight", value.clone())) {}
  at::Tensor forward(const at::Tensor& x) { return weight * x; }
  at::Tensor weight;
};
FSDP_MODULE(Scale);

/// Fills each parameter with other numbers, the same in every model.
inline void fill_distinct(torch::nn::Module& module) {
  c10::AutoGradMode grad_off(false);
  double shift = 1;
  for (const auto& param : module.parameters()) {
    const auto k = at::arange(param.numel(), at::kDouble);
    param.copy_((0.3 * at::sin(0.7 * k + shift)).view(param.sizes()));
    shift += 1;
  }
}

constexpr std::int64_t kWidth = 6;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t hidden = 7)
      : in(register_module("in", torch::nn::Linear(kWidth, hidden))),
        out(register_module("out", torch::nn::Linear(hidden, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + out(at::tanh(in(x))); }
  torch::nn::Linear in;
  torch::nn::Linear out;
};
FSDP_MODULE(Block);

/// Linear, blocks, Linear; in float64.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int num_blocks = 3)
      : first(register_module("first", torch::nn::Linear(3, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        last(register_module("last", torch::nn::Linear(kWidth, 2))) {
    for (int i = 0; i < num_blocks; ++i) {
      blocks->push_back(Block());
    }
    fill_distinct(*this);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = first(x);
    for (const auto& block : *blocks) {
      hidden = block->as<Block>()->forward(hidden);
    }
    return last(hidden);
  }
  torch::nn::Linear first;
  torch::nn::ModuleList blocks;
  torch::nn::Linear last;
};
FSDP_MODULE(Stack);

/// Each block a unit, the rest the root's.
inline void shard_stack(Stack& model, const FullyShardOptions& options) {
  for (const auto& block : *model->blocks) {
    fully_shard(block, options);
  }
  fully_shard(model, options);
}
inline void shard_stack(Stack& model, const ProcessGroup& world) {
  shard_stack(model, {.mesh = shard_mesh(world)});
}

struct Batch {
  at::Tensor x; ///< [rows, 3]
  at::Tensor y; ///< [rows, 2]
};

/// Rows [begin, begin + count) of an endless float64 batch.
inline Batch batch_rows(std::int64_t begin, std::int64_t count) {
  const auto i = at::arange(begin, begin + count, at::kDouble).unsqueeze(1);
  return {
      at::sin(0.3 * i + at::arange(3, at::kDouble)),
      at::cos(0.2 * i + at::arange(2, at::kDouble))};
}

/// Rows of `rank`, of a batch of 24 rows split over `size` ranks; each step has
/// another batch.
inline Batch batch_of(int rank, int size, int step = 0) {
  return batch_rows(24 * step + rank * 24 / size, 24 / size);
}
inline Batch whole_batch(int step = 0) {
  return batch_rows(24 * step, 24);
}

/// Inputs of a Block: the rows of `rank`, of 24 split over `size` ranks.
inline at::Tensor rows_of(int rank, int size) {
  const auto all =
      at::sin(at::arange(24 * kWidth, at::kDouble)).view({24, kWidth});
  return all.narrow(0, rank * 24 / size, 24 / size);
}

inline at::Tensor loss_of(Stack& model, const Batch& batch) {
  return at::mse_loss(model(batch.x), batch.y);
}

/// This rank's rows of the plain model's gradients; parameters without gradient
/// have none in the sharded one either.
inline void expect_grads_of(
    const torch::nn::Module& sharded,
    const torch::nn::Module& plain,
    double tolerance = 1e-12) {
  const auto params = sharded.named_parameters();
  const auto infos = shard_infos(sharded);
  ASSERT_EQ(infos.size(), params.size());
  for (const auto& info : infos) {
    const at::Tensor& param = params[info.name];
    const at::Tensor& expected = plain.named_parameters()[info.name].grad();
    ASSERT_EQ(param.grad().defined(), expected.defined()) << info.name;
    if (expected.defined()) {
      ASSERT_EQ(param.grad().sizes(), param.sizes()) << info.name;
      EXPECT_TRUE(at::allclose(
          param.grad(),
          expected.narrow(0, info.row_begin, info.num_rows)
              .to(param.scalar_type()),
          tolerance,
          tolerance))
          << info.name << "\n"
          << param.grad() << "\nexpected\n"
          << expected;
    }
  }
}

/// [collective]
inline void expect_params_of(
    torch::nn::Module& sharded,
    const torch::nn::Module& plain,
    double tolerance = 1e-12) {
  for (const auto& [name, value] : full_parameters(sharded)) {
    const at::Tensor expected = plain.named_parameters()[name].detach();
    EXPECT_TRUE(at::allclose(value, expected, tolerance, tolerance))
        << name << "\n"
        << value << "\nexpected\n"
        << expected;
  }
}

/// [collective] The mean over ranks.
inline double mean_over_ranks(const ProcessGroup& world, double value) {
  world.communicator().all_reduce(
      &value, 1, DType::kFloat64, ReduceOp::kAvg, "test");
  return value;
}

inline void sgd_step(const torch::nn::Module& module, double lr = 0.1) {
  c10::AutoGradMode grad_off(false);
  for (const auto& param : module.parameters()) {
    if (param.grad().defined()) {
      param.sub_(lr * param.grad());
    }
  }
}

/// Whether the parameter shows all its rows now.
inline bool is_full(const torch::nn::Module& module, const std::string& name) {
  for (const auto& info : shard_infos(module)) {
    if (info.name == name) {
      return module.named_parameters()[name].sizes() == info.full_sizes;
    }
  }
  throw std::runtime_error("no parameter " + name);
}

} // namespace fsdp::testing
