// A sharded run follows the run of one plain process on the whole batch: both
// models, every world size and backend.

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <map>
#include <tuple>

#include "fsdp/clip_grad.h"
#include "fsdp/fully_shard.h"
#include "fsdp/optim.h"
#include "support/ranks.h"
#include "train/models/language_model.h"
#include "train/presets.h"

namespace fsdp {
namespace {

constexpr std::int64_t kBatch = 24;
constexpr std::int64_t kSeq = 32;
constexpr int kNumSteps = 20;
constexpr double kLr = 3e-4;
constexpr std::uint64_t kSeed = 7;

struct TrainRun {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::pair<std::string, at::Tensor>> weights;
};

struct Tokens {
  at::Tensor inputs; ///< [kBatch, kSeq]
  at::Tensor targets;
};

Tokens tokens_of(const ModelShape& shape, int step) {
  const auto index = at::arange(kBatch * (kSeq + 1), at::kLong);
  const auto all =
      ((index * index + 31 * index + 101 * step) % shape.vocab_size)
          .view({kBatch, kSeq + 1});
  return {all.slice(1, 0, kSeq), all.slice(1, 1).contiguous()};
}

at::Tensor loss_of(const LanguageModel& model, const Tokens& tokens) {
  const auto logits = model.forward(tokens.inputs).to(at::kFloat);
  return at::cross_entropy_loss(
      logits.reshape({-1, model.shape.vocab_size}),
      tokens.targets.reshape({-1}));
}

/// In float64: LibTorch's own clip_grad_norm_ sums a large tensor's squares in
/// float32, 2e-4 off for this model's embedding.
double clip_plain(const std::vector<at::Tensor>& params, double max_norm) {
  double squares = 0;
  for (const auto& param : params) {
    squares += param.grad().to(at::kDouble).pow(2).sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  if (norm > max_norm) {
    c10::AutoGradMode grad_off(false);
    for (const auto& param : params) {
      param.grad().mul_(max_norm / (norm + 1e-6));
    }
  }
  return norm;
}

/// The plain module with torch::optim, in this thread.
TrainRun train_plain(const ModelShape& shape) {
  const auto model = make_model(shape, kSeed);
  torch::optim::AdamW optimizer(
      model.module->parameters(), torch::optim::AdamWOptions(kLr));
  TrainRun run;
  for (int step = 0; step < kNumSteps; ++step) {
    const auto loss = loss_of(model, tokens_of(shape, step));
    loss.backward();
    run.losses.push_back(loss.item<double>());
    run.norms.push_back(clip_plain(model.module->parameters(), 1.0));
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& entry : model.module->named_parameters()) {
    run.weights.emplace_back(entry.key(), entry.value().detach());
  }
  return run;
}

/// What a rank of the sharded run sees; weights are gathered.
TrainRun train_rank(
    const ModelShape& shape,
    const ProcessGroup& world,
    const MixedPrecisionPolicy& policy) {
  const auto model = make_model(shape, kSeed);
  shard_model(model, {.mesh = testing::shard_mesh(world), .mp_policy = policy});
  AdamW optimizer(model.module->parameters(), {.lr = kLr});
  const std::int64_t share = kBatch / world.size();
  TrainRun run;
  for (int step = 0; step < kNumSteps; ++step) {
    Tokens tokens = tokens_of(shape, step);
    tokens.inputs = tokens.inputs.narrow(0, world.rank() * share, share);
    tokens.targets = tokens.targets.narrow(0, world.rank() * share, share);
    const auto loss = loss_of(model, tokens);
    loss.backward();
    double mean = loss.item<double>();
    world.communicator().all_reduce(
        &mean, 1, DType::kFloat64, ReduceOp::kAvg, "the loss");
    run.losses.push_back(mean);
    run.norms.push_back(clip_grad_norm_(*model.module, 1.0));
    optimizer.step();
    optimizer.zero_grad();
  }
  run.weights = full_parameters(*model.module);
  return run;
}

TrainRun train_sharded(
    const ModelShape& shape,
    const std::string& backend,
    int size,
    const MixedPrecisionPolicy& policy = {}) {
  std::vector<TrainRun> runs(static_cast<std::size_t>(size));
  testing::with_ranks(
      size,
      [&](const ProcessGroup& world) {
        runs[static_cast<std::size_t>(world.rank())] =
            train_rank(shape, world, policy);
      },
      backend);
  for (const TrainRun& run : runs) {
    EXPECT_EQ(run.losses, runs[0].losses) << "the ranks disagree";
    EXPECT_EQ(run.norms, runs[0].norms) << "the ranks disagree";
  }
  return runs[0];
}

void expect_bit_equal(const TrainRun& a, const TrainRun& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(a.weights[i].second, b.weights[i].second))
        << a.weights[i].first;
  }
}

void expect_parity(const TrainRun& run, const TrainRun& reference) {
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step] / reference.losses[step], 1.0, 5e-6)
        << "loss of step " << step;
    EXPECT_NEAR(run.norms[step] / reference.norms[step], 1.0, 1e-5)
        << "norm of step " << step;
  }
  ASSERT_EQ(run.weights.size(), reference.weights.size());
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    EXPECT_EQ(run.weights[i].first, reference.weights[i].first);
    const double difference =
        (run.weights[i].second - reference.weights[i].second)
            .abs()
            .max()
            .item<double>();
    EXPECT_LT(difference, 1e-4) << run.weights[i].first;
  }
}

ModelShape small_transformer() {
  return {
      .kind = ModelKind::kSimpleTransformer,
      .vocab_size = 101,
      .d_model = 32,
      .num_layers = 2,
      .num_heads = 4,
      .d_ff = 65};
}

ModelShape small_decoder(bool tied) {
  return {
      .kind = ModelKind::kDecoder,
      .vocab_size = 97,
      .d_model = 48,
      .num_layers = 3,
      .num_heads = 4,
      .num_kv_heads = 2,
      .d_ff = 100,
      .max_seq = 64,
      .tied = tied};
}

const ModelShape& shape_named(const std::string& name) {
  static const std::map<std::string, ModelShape> shapes{
      {"transformer", small_transformer()},
      {"decoder", small_decoder(false)},
      {"tied_decoder", small_decoder(true)},
      {"seed", find_preset("seed").shape}};
  return shapes.at(name);
}

const TrainRun& plain_run(const std::string& name) {
  static std::map<std::string, TrainRun> runs;
  auto found = runs.find(name);
  if (found == runs.end()) {
    found = runs.emplace(name, train_plain(shape_named(name))).first;
  }
  return found->second;
}

using Case = std::tuple<std::string, std::string, int>;

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
         std::to_string(std::get<2>(info.param));
}

class OneProcessParity : public ::testing::TestWithParam<Case> {};

TEST_P(OneProcessParity, HoldsFor20StepsAndAgainBitForBit) {
  const auto& [model, backend, size] = GetParam();
  const TrainRun run = train_sharded(shape_named(model), backend, size);
  expect_parity(run, plain_run(model));
  expect_bit_equal(run, train_sharded(shape_named(model), backend, size));
}

INSTANTIATE_TEST_SUITE_P(
    Reduced,
    OneProcessParity,
    ::testing::Combine(
        ::testing::Values("transformer", "decoder", "tied_decoder"),
        ::testing::Values("inproc", "shm", "gloo"),
        ::testing::Values(1, 2, 3, 4, 8)),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Full,
    OneProcessParity,
    ::testing::Combine(
        ::testing::Values("seed"),
        ::testing::Values("shm"),
        ::testing::Values(1, 2, 3, 4, 8)),
    name_of_case);

TEST(BackendParity, GivesTheSameBitsOverInprocShmAndGloo) {
  const auto& shape = shape_named("decoder");
  for (const int size : {2, 3, 8}) {
    const TrainRun inproc = train_sharded(shape, "inproc", size);
    expect_bit_equal(inproc, train_sharded(shape, "shm", size));
    expect_bit_equal(inproc, train_sharded(shape, "gloo", size));
  }
}

TEST(BFloat16Parity, StaysWithinOnePercentOfFloat32ButIsNotIt) {
  const MixedPrecisionPolicy policy{
      .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  for (const std::string model : {"transformer", "decoder"}) {
    const TrainRun& reference = plain_run(model);
    for (const int size : {1, 2, 3, 8}) {
      const TrainRun run =
          train_sharded(shape_named(model), "inproc", size, policy);
      EXPECT_NE(run.losses, reference.losses);
      for (std::size_t step = 0; step < run.losses.size(); ++step) {
        EXPECT_NEAR(run.losses[step] / reference.losses[step], 1.0, 1e-2)
            << model << " on " << size << ", step " << step;
      }
    }
  }
}

} // namespace
} // namespace fsdp
