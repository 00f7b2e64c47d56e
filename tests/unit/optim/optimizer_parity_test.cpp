// The fused optimizers against torch::optim's loops of small operators.

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/optim.h"

namespace {

using at::Tensor;

constexpr int kSteps = 10;
constexpr double kTolerance = 1e-6;

const std::vector<std::vector<std::int64_t>> kShapes = {
    {7, 5}, {0, 5}, {1}, {3, 4, 2}, {1000, 33}};

Tensor parameter_of(std::size_t index, const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) {
    numel *= size;
  }
  Tensor values = at::arange(numel, at::kFloat).add(1.0 + index).sin();
  return values.view(shape).clone().requires_grad_(true);
}

std::vector<Tensor> make_parameters() {
  std::vector<Tensor> parameters;
  for (std::size_t index = 0; index < kShapes.size(); ++index) {
    parameters.push_back(parameter_of(index, kShapes[index]));
  }
  return parameters;
}

// Gradients that change sign and size from step to step.
void set_gradients(
    const std::vector<Tensor>& parameters,
    int step,
    const std::function<bool(std::size_t, int)>& has_gradient) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const Tensor& parameter = parameters[index];
    if (!has_gradient(index, step)) {
      parameter.mutable_grad() = Tensor();
      continue;
    }
    parameter.mutable_grad() = at::arange(parameter.numel(), at::kFloat)
                                   .mul(0.7)
                                   .add(static_cast<double>(3 * step + 1))
                                   .cos()
                                   .mul(0.1 * (step + 1))
                                   .view(parameter.sizes())
                                   .to(parameter.scalar_type());
  }
}

bool always(std::size_t, int) {
  return true;
}

// Parameter 0 has its first gradient in step 3, parameter 3 none in step 5,
// parameter 4 never one.
bool sometimes(std::size_t index, int step) {
  return !(index == 0 && step < 3) && !(index == 3 && step == 5) && index != 4;
}

using Ours =
    std::function<std::unique_ptr<fsdp::Optimizer>(std::vector<Tensor>)>;
using Theirs = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<Tensor>)>;

void expect_parity(
    const Ours& make_ours,
    const Theirs& make_theirs,
    const std::function<bool(std::size_t, int)>& has_gradient = always) {
  const std::vector<Tensor> ours = make_parameters();
  const std::vector<Tensor> theirs = make_parameters();
  const auto optimizer = make_ours(ours);
  const auto reference = make_theirs(theirs);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(ours, step, has_gradient);
    set_gradients(theirs, step, has_gradient);
    optimizer->step();
    reference->step();
    for (std::size_t index = 0; index < ours.size(); ++index) {
      ASSERT_TRUE(at::allclose(ours[index], theirs[index], 0, kTolerance))
          << "parameter " << index << " after step " << step << ": off by "
          << (ours[index] - theirs[index]).abs().max().item<double>();
    }
  }
  const Tensor start = parameter_of(3, kShapes[3]);
  EXPECT_FALSE(at::allclose(ours[3], start, 0, 1e-3)) << "nothing moved";
}

struct AdamCase {
  double lr, beta1, beta2, eps, weight_decay;
};

const std::vector<AdamCase> kAdamCases = {
    {1e-3, 0.9, 0.999, 1e-8, 0.01},
    {3e-2, 0.9, 0.999, 1e-8, 0},
    {1e-2, 0.8, 0.95, 1e-8, 0.1},
    {1e-2, 0, 0.5, 1e-3, 0.3},
    {1e-2, 0.9, 0, 1e-2, 0},
};

template <typename Options>
Options ours_of(const AdamCase& c) {
  return {
      .lr = c.lr,
      .beta1 = c.beta1,
      .beta2 = c.beta2,
      .eps = c.eps,
      .weight_decay = c.weight_decay};
}

template <typename Options>
Options theirs_of(const AdamCase& c) {
  return Options(c.lr)
      .betas({c.beta1, c.beta2})
      .eps(c.eps)
      .weight_decay(c.weight_decay);
}

Ours our_adamw(const AdamCase& c) {
  return [c](std::vector<Tensor> parameters) {
    return std::make_unique<fsdp::AdamW>(
        std::move(parameters), ours_of<fsdp::AdamWOptions>(c));
  };
}

Theirs their_adamw(const AdamCase& c) {
  return [c](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(
        std::move(parameters), theirs_of<torch::optim::AdamWOptions>(c));
  };
}

Ours our_adam(const AdamCase& c) {
  return [c](std::vector<Tensor> parameters) {
    return std::make_unique<fsdp::Adam>(
        std::move(parameters), ours_of<fsdp::AdamOptions>(c));
  };
}

Theirs their_adam(const AdamCase& c) {
  return [c](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::Adam>(
        std::move(parameters), theirs_of<torch::optim::AdamOptions>(c));
  };
}

struct SgdCase {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};

const std::vector<SgdCase> kSgdCases = {
    {0.1, 0, 0, 0, false},
    {0.1, 0, 0, 0.2, false},
    {0.1, 0.9, 0, 0, false},
    {0.05, 0.8, 0.3, 0.1, false},
    {0.05, 0.9, 0, 0.1, true},
};

Ours our_sgd(const SgdCase& c) {
  return [c](std::vector<Tensor> parameters) {
    const fsdp::SGDOptions options{
        .lr = c.lr,
        .momentum = c.momentum,
        .dampening = c.dampening,
        .weight_decay = c.weight_decay,
        .nesterov = c.nesterov};
    return std::make_unique<fsdp::SGD>(std::move(parameters), options);
  };
}

Theirs their_sgd(const SgdCase& c) {
  return [c](std::vector<Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters),
        torch::optim::SGDOptions(c.lr)
            .momentum(c.momentum)
            .dampening(c.dampening)
            .weight_decay(c.weight_decay)
            .nesterov(c.nesterov));
  };
}

TEST(AdamW, EqualsTorchOptimWithEveryOption) {
  for (const AdamCase& c : kAdamCases) {
    SCOPED_TRACE("lr " + std::to_string(c.lr));
    expect_parity(our_adamw(c), their_adamw(c));
  }
}

TEST(AdamW, EqualsTorchOptimWhenGradientsAreMissingOrComeLater) {
  expect_parity(
      our_adamw(kAdamCases[2]), their_adamw(kAdamCases[2]), sometimes);
}

TEST(Adam, EqualsTorchOptimWithEveryOption) {
  for (const AdamCase& c : kAdamCases) {
    SCOPED_TRACE("lr " + std::to_string(c.lr));
    expect_parity(our_adam(c), their_adam(c));
  }
}

TEST(Adam, EqualsTorchOptimWhenGradientsAreMissingOrComeLater) {
  expect_parity(our_adam(kAdamCases[2]), their_adam(kAdamCases[2]), sometimes);
}

TEST(SGD, EqualsTorchOptimWithEveryOption) {
  for (const SgdCase& c : kSgdCases) {
    SCOPED_TRACE("momentum " + std::to_string(c.momentum));
    expect_parity(our_sgd(c), their_sgd(c));
  }
}

TEST(SGD, EqualsTorchOptimWhenGradientsAreMissingOrComeLater) {
  for (const SgdCase& c : kSgdCases) {
    SCOPED_TRACE("momentum " + std::to_string(c.momentum));
    expect_parity(our_sgd(c), their_sgd(c), sometimes);
  }
}

TEST(AdamW, FollowsALearningRateScheduleAsTorchOptimDoes) {
  const AdamCase c = kAdamCases[0];
  const std::vector<Tensor> ours = make_parameters();
  const std::vector<Tensor> theirs = make_parameters();
  fsdp::AdamW optimizer(ours, ours_of<fsdp::AdamWOptions>(c));
  torch::optim::AdamW reference(
      theirs, theirs_of<torch::optim::AdamWOptions>(c));
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(ours, step, always);
    set_gradients(theirs, step, always);
    const double lr = 0.01 / (1 + step);
    optimizer.set_lr(lr);
    reference.param_groups()[0].options().set_lr(lr);
    optimizer.step();
    reference.step();
    ASSERT_TRUE(at::allclose(ours[4], theirs[4], 0, kTolerance)) << step;
  }
}

TEST(AdamW, StepsDtypesTogetherEachAsAlone) {
  // bfloat16 and float64 beside float32, against an optimizer for each.
  const std::vector<at::ScalarType> dtypes = {
      at::kFloat, at::kBFloat16, at::kDouble, at::kFloat};
  std::vector<Tensor> together, alone;
  for (std::size_t index = 0; index < dtypes.size(); ++index) {
    for (auto* list : {&together, &alone}) {
      list->push_back(parameter_of(index, {4, 3})
                          .detach()
                          .to(dtypes[index])
                          .requires_grad_(true));
    }
  }
  fsdp::AdamW optimizer(together, {.lr = 0.01});
  std::vector<std::unique_ptr<fsdp::AdamW>> optimizers;
  for (const Tensor& parameter : alone) {
    optimizers.push_back(std::make_unique<fsdp::AdamW>(
        std::vector<Tensor>{parameter}, fsdp::AdamWOptions{.lr = 0.01}));
  }
  for (int step = 0; step < 3; ++step) {
    set_gradients(together, step, always);
    set_gradients(alone, step, always);
    optimizer.step();
    for (auto& single : optimizers) {
      single->step();
    }
  }
  for (std::size_t index = 0; index < dtypes.size(); ++index) {
    EXPECT_EQ(together[index].scalar_type(), dtypes[index]);
    EXPECT_TRUE(together[index].equal(alone[index])) << index;
  }
  const Tensor start = parameter_of(1, {4, 3}).to(at::kBFloat16);
  EXPECT_FALSE(together[1].equal(start)) << "bfloat16 did not move";
}

} // namespace
