// The models against the same modules in PyTorch (reference_models.py).

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "train/models/language_model.h"

namespace fsdp {
namespace {

using nlohmann::json;

/// What the script prints; it runs once.
const json& reference() {
  static const json result = [] {
    const std::string command =
        std::string(FSDP_TEST_PYTHON) + " " + FSDP_TEST_REFERENCE;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
        ::popen(command.c_str(), "r"), &::pclose);
    std::string text;
    std::array<char, 4096> part{};
    while (std::fgets(part.data(), part.size(), pipe.get()) != nullptr) {
      text += part.data();
    }
    if (text.empty()) {
      throw std::runtime_error(
          "FSDP_PYTHON=" FSDP_TEST_PYTHON
          " is no Python with torch: ./run test installs one");
    }
    return json::parse(text);
  }();
  return result;
}

using Step = std::pair<double, double>; // loss, gradient norm

std::vector<Step> run_steps(const ModelShape& shape, std::size_t num_steps) {
  const LanguageModel model = make_model(shape, 0);
  {
    const at::NoGradGuard no_grad;
    for (auto& item : model.module->named_parameters()) {
      at::Tensor& p = item.value();
      const bool is_norm = item.key().find("norm") != std::string::npos &&
                           item.key().ends_with("weight");
      p.copy_((at::sin(at::arange(1, p.numel() + 1, at::kDouble)) * 0.1 +
               (is_norm ? 1.0 : 0.0))
                  .view(p.sizes()));
    }
  }
  const at::Tensor i = at::arange(3 * 16, at::kLong).view({3, 16});
  const at::Tensor tokens = (i * 7 + 3).remainder(shape.vocab_size);
  const at::Tensor targets = (i * i + 5).remainder(shape.vocab_size);

  std::vector<Step> steps;
  while (steps.size() < num_steps) {
    const at::Tensor loss = at::cross_entropy_loss(
        model.forward(tokens).flatten(0, 1), targets.flatten());
    loss.backward();
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (at::Tensor& p : model.module->parameters()) {
      squares += p.grad().square().sum().item<double>();
      p.sub_(p.grad() * 0.03);
      p.mutable_grad() = at::Tensor();
    }
    steps.emplace_back(loss.item<double>(), std::sqrt(squares));
  }
  return steps;
}

void expect_equal_steps(const json& expected, const std::vector<Step>& got) {
  ASSERT_EQ(expected["steps"].size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double loss = expected["steps"][i][0];
    const double norm = expected["steps"][i][1];
    EXPECT_NEAR(got[i].first, loss, 1e-5 * loss) << "step " << i;
    EXPECT_NEAR(got[i].second, norm, 1e-5 * norm) << "step " << i;
  }
}

using State = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

State state_of(const ModelShape& shape) {
  State state;
  const LanguageModel model = make_model(shape, 0);
  for (const auto& item : model.module->named_parameters()) {
    state.emplace_back(item.key(), item.value().sizes().vec());
  }
  std::sort(state.begin(), state.end());
  return state;
}

void expect_equal_state(const json& expected, const State& got) {
  auto wanted = expected["state"].get<State>();
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(got, wanted);
}

ModelShape simple_shape() {
  return {
      .kind = ModelKind::kSimpleTransformer,
      .vocab_size = 50,
      .d_model = 32,
      .num_layers = 2,
      .num_heads = 4,
      .num_kv_heads = 4,
      .d_ff = 64};
}

ModelShape decoder_shape() {
  return {
      .vocab_size = 50,
      .d_model = 32,
      .num_layers = 2,
      .num_heads = 4,
      .num_kv_heads = 2,
      .d_ff = 48,
      .max_seq = 32};
}

TEST(ModelParity, SimpleTransformerTrainsAsPyTorchs) {
  const json expected = reference().at("simple");
  expect_equal_steps(expected, run_steps(simple_shape(), 4));
  expect_equal_state(expected, state_of(simple_shape()));
}

TEST(ModelParity, SeedPresetHasPyTorchsStateNamesAndShapes) {
  const State state = state_of(find_preset("seed").shape);
  EXPECT_EQ(state.size(), 75U);
  expect_equal_state(reference().at("seed"), state);
}

TEST(ModelParity, DecoderTrainsAsPyTorchs) {
  const json expected = reference().at("decoder");
  expect_equal_steps(expected, run_steps(decoder_shape(), 4));
  expect_equal_state(expected, state_of(decoder_shape()));
}

TEST(ModelParity, TiedDecoderWithOneKeyValueHeadTrainsAsPyTorchs) {
  ModelShape shape = decoder_shape();
  shape.num_kv_heads = 1;
  shape.tied = true;
  const json expected = reference().at("decoder_tied");
  expect_equal_steps(expected, run_steps(shape, 4));
  expect_equal_state(expected, state_of(shape));
}

} // namespace
} // namespace fsdp
