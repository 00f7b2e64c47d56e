// Every byte of a sharded model, by component: at rest, after the forward, in
// the backward, after the step.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <tuple>

#include "fsdp/memory.h"
#include "fsdp/optim.h"
#include "runtime/memory_account.h"
#include "support/ranks.h"
#include "train/models/language_model.h"
#include "train/presets.h"

namespace fsdp {
namespace {

constexpr std::int64_t kSeq = 8;

/// What the model must take, from the sizes of its parameters alone.
struct Expected {
  std::int64_t own_bytes = 0; ///< float32 rows of this rank
  std::int64_t num_tensors = 0;
  std::int64_t buffer_bytes = 0;
  std::int64_t root_bytes = 0; ///< gathered, in the compute dtype
  std::int64_t block_bytes = 0;
  std::int64_t num_blocks = 0;
  /// Gradients that are too small to be read where they are, of the unit with
  /// the most of them.
  std::int64_t small_bytes = 0;

  std::int64_t all_bytes() const {
    return root_bytes + num_blocks * block_bytes;
  }
};

std::int64_t padded(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

std::int64_t gathered_bytes(const at::Tensor& param, std::int64_t element) {
  return padded(param.numel() * element);
}

std::int64_t small_gradient_bytes(
    const at::Tensor& param, std::int64_t element) {
  const bool is_small = param.numel() * element < std::int64_t{16 << 10};
  return is_small ? gathered_bytes(param, element) : 0;
}

Expected expect_of(
    const LanguageModel& model, int rank, int size, std::int64_t element) {
  Expected expected;
  std::int64_t small_bytes = 0;
  expected.num_blocks = static_cast<std::int64_t>(model.blocks.size());
  for (const auto& param : model.module->parameters()) {
    const std::int64_t rows = (param.size(0) + size - 1) / size;
    const std::int64_t begin = std::min(param.size(0), rows * rank);
    const std::int64_t end = std::min(param.size(0), begin + rows);
    expected.own_bytes += (end - begin) * (param.numel() / param.size(0)) * 4;
    expected.root_bytes += gathered_bytes(param, element);
    small_bytes += small_gradient_bytes(param, element);
    ++expected.num_tensors;
  }
  for (const auto& param : model.blocks.front()->parameters()) {
    expected.block_bytes += gathered_bytes(param, element);
    expected.small_bytes += small_gradient_bytes(param, element);
  }
  expected.small_bytes = std::max(
      expected.small_bytes,
      small_bytes - expected.num_blocks * expected.small_bytes);
  expected.root_bytes -= expected.num_blocks * expected.block_bytes;
  for (const auto& buffer : model.module->buffers()) {
    expected.buffer_bytes += static_cast<std::int64_t>(buffer.nbytes());
  }
  return expected;
}

ModelShape shape_of(const std::string& model) {
  if (model == "seed") {
    return find_preset("seed").shape;
  }
  return {
      .vocab_size = 131,
      .d_model = 48,
      .num_layers = 12,
      .num_heads = 3,
      .num_kv_heads = 1,
      .d_ff = 100,
      .max_seq = kSeq};
}

std::int64_t now(MemoryComponent component) {
  return memory_report()[component].current;
}

using Parameters = std::tuple<std::string, int, std::string, bool>;

class ExactMemory : public ::testing::TestWithParam<Parameters> {
 protected:
  bool is_shared() const { return std::get<0>(GetParam()) == "inproc"; }
  int size() const { return std::get<1>(GetParam()); }
  bool is_bf16() const { return std::get<3>(GetParam()); }

  /// Of the ranks' parts, where memory is shared: adds up to the whole model.
  void expect_gathered(const ProcessGroup& world, std::int64_t whole) {
    std::vector<double> sum{
        static_cast<double>(now(MemoryComponent::kGathered))};
    at::Tensor total = at::tensor(sum, at::kDouble);
    world.all_reduce(total, ReduceOp::kSum);
    EXPECT_EQ(total.item<double>(), static_cast<double>(whole));
    EXPECT_NEAR(sum[0], static_cast<double>(whole) / size(), 64);
  }

  void train(ProcessGroup world);
  void step(
      const LanguageModel& model,
      const Expected& expected,
      const ProcessGroup& world,
      Optimizer& optimizer,
      bool is_first);
};

void ExactMemory::step(
    const LanguageModel& model,
    const Expected& expected,
    const ProcessGroup& world,
    Optimizer& optimizer,
    bool is_first) {
  const at::Tensor tokens = at::zeros({1, kSeq}, at::kLong);
  const std::int64_t at_rest = now(MemoryComponent::kActivations);
  const std::int64_t of_adamw =
      2 * expected.own_bytes + 4 * expected.num_tensors;
  const auto expect_sharded_state = [&](const char* when,
                                        std::int64_t of_optimizer) {
    EXPECT_EQ(now(MemoryComponent::kParameters), expected.own_bytes) << when;
    EXPECT_EQ(now(MemoryComponent::kOptimizerState), of_optimizer) << when;
  };
  const std::int64_t before_step = is_first ? 0 : of_adamw;
  {
    const at::Tensor loss = at::cross_entropy_loss(
        model.forward(tokens).to(at::kFloat).flatten(0, 1), tokens.flatten());
    expect_sharded_state("after the forward", before_step);
    EXPECT_EQ(now(MemoryComponent::kGradients), 0);
    if (is_shared()) {
      expect_gathered(world, expected.all_bytes());
    }
    int num_events = 0;
    set_unit_observer(*model.module, [&](UnitEvent, const std::string& unit) {
      ++num_events;
      expect_sharded_state(unit.c_str(), before_step);
      EXPECT_LE(now(MemoryComponent::kGradients), expected.own_bytes) << unit;
    });
    loss.backward();
    set_unit_observer(*model.module, nullptr);
    EXPECT_GT(num_events, 3 * expected.num_blocks);
  }
  expect_sharded_state("after the backward", before_step);
  EXPECT_EQ(now(MemoryComponent::kGradients), expected.own_bytes);
  EXPECT_EQ(now(MemoryComponent::kActivations), at_rest);
  EXPECT_LE(
      now(MemoryComponent::kReduction),
      is_shared() ? 2 * expected.small_bytes : 0);
  optimizer.step();
  optimizer.zero_grad();
  expect_sharded_state("after the step", of_adamw);
  EXPECT_EQ(now(MemoryComponent::kGradients), 0);
  EXPECT_EQ(now(MemoryComponent::kActivations), at_rest);
  if (is_shared()) {
    expect_gathered(world, expected.all_bytes());
  }
}

void ExactMemory::train(ProcessGroup world) {
  const RankMemory mine;
  const LanguageModel model = make_model(shape_of(std::get<2>(GetParam())), 0);
  const Expected expected =
      expect_of(model, world.rank(), world.size(), is_bf16() ? 2 : 4);
  FullyShardOptions options{.mesh = testing::shard_mesh(world)};
  if (is_bf16()) {
    options.mp_policy = {
        .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  }
  shard_model(model, options);
  EXPECT_EQ(now(MemoryComponent::kParameters), expected.own_bytes);
  EXPECT_EQ(now(MemoryComponent::kActivations), expected.buffer_bytes);
  EXPECT_EQ(
      memory_report().total.current,
      expected.own_bytes + expected.buffer_bytes);
  reset_peak_memory();

  AdamW optimizer(model.module->parameters());
  step(model, expected, world, optimizer, /*is_first=*/true);
  step(model, expected, world, optimizer, /*is_first=*/false);

  const MemoryReport report = memory_report();
  EXPECT_EQ(report[MemoryComponent::kParameters].peak, expected.own_bytes);
  EXPECT_EQ(report[MemoryComponent::kGradients].peak, expected.own_bytes);
  const std::int64_t in_reduction = report[MemoryComponent::kReduction].peak;
  EXPECT_GE(in_reduction, expected.root_bytes);
  EXPECT_LE(
      in_reduction,
      is_shared() ? expected.root_bytes + 3 * expected.block_bytes +
                        2 * expected.small_bytes
                  : std::max(
                        expected.root_bytes + 3 * expected.block_bytes,
                        2 * expected.root_bytes + 2 * expected.block_bytes));
  if (!is_shared()) {
    EXPECT_GE(
        report[MemoryComponent::kGathered].peak,
        expected.root_bytes + expected.block_bytes);
    EXPECT_LE(
        report[MemoryComponent::kGathered].peak,
        expected.root_bytes + 2 * expected.block_bytes);
  }
}

TEST_P(ExactMemory, IsWhatTheSizesOfTheParametersSay) {
  install_counting_allocator();
  testing::with_ranks(
      size(),
      [this](ProcessGroup world) { train(std::move(world)); },
      std::get<0>(GetParam()));
}

std::string name_of_case(const ::testing::TestParamInfo<Parameters>& info) {
  return std::get<0>(info.param) + "_" +
         std::to_string(std::get<1>(info.param)) + "_" +
         std::get<2>(info.param) +
         (std::get<3>(info.param) ? "_bf16" : "_fp32");
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ExactMemory,
    ::testing::Combine(
        ::testing::Values("inproc", "gloo"),
        ::testing::Values(2, 3, 4, 8),
        ::testing::Values("seed", "twelve_blocks"),
        ::testing::Bool()),
    name_of_case);

} // namespace
} // namespace fsdp
