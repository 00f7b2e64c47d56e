// What include/fsdp/optim.h promises beyond the arithmetic.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/optim.h"

namespace {

using at::Tensor;

Tensor parameter(std::vector<std::int64_t> shape) {
  return at::ones(shape, at::kFloat).requires_grad_(true);
}

void set_gradient(const Tensor& parameter, double value) {
  parameter.mutable_grad() =
      at::full(parameter.sizes(), value, parameter.options());
}

using Make =
    std::function<std::unique_ptr<fsdp::Optimizer>(std::vector<Tensor>)>;

const std::vector<std::pair<std::string, Make>> kOptimizers = {
    {"AdamW",
     [](std::vector<Tensor> parameters) {
       return std::make_unique<fsdp::AdamW>(parameters);
     }},
    {"Adam",
     [](std::vector<Tensor> parameters) {
       return std::make_unique<fsdp::Adam>(parameters);
     }},
    {"SGD",
     [](std::vector<Tensor> parameters) {
       return std::make_unique<fsdp::SGD>(
           parameters, fsdp::SGDOptions{.lr = 0.1, .momentum = 0.5});
     }},
};

template <typename Call>
std::string usage_error_of(Call&& call) {
  try {
    call();
  } catch (const fsdp::UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Optimizer, BumpsTheVersionOfEveryParameterItSteps) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor stepped = parameter({3});
    const Tensor left = parameter({3});
    const auto optimizer = make({stepped, left});
    set_gradient(stepped, 1);
    const auto before = stepped._version();
    const auto left_before = left._version();
    optimizer->step();
    EXPECT_GT(stepped._version(), before);
    EXPECT_EQ(left._version(), left_before);
  }
}

TEST(Optimizer, MakesAStaleBackwardFail) {
  const Tensor weight = parameter({3});
  fsdp::AdamW optimizer({weight});
  const Tensor loss = weight.mul(weight).sum(); // saves `weight`
  set_gradient(weight, 1);
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Optimizer, ZeroGradDropsTheGradients) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor weight = parameter({3});
    const auto optimizer = make({weight});
    set_gradient(weight, 1);
    optimizer->zero_grad();
    EXPECT_FALSE(weight.grad().defined());
    optimizer->step();
    EXPECT_TRUE(weight.equal(at::ones({3})));
  }
}

TEST(Optimizer, StepsAParameterThatIsListedTwiceOnce) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor tied = parameter({3});
    const Tensor once = parameter({3});
    const auto optimizer = make({tied, tied});
    const auto reference = make({once});
    EXPECT_EQ(optimizer->parameters().size(), 1U);
    set_gradient(tied, 1);
    set_gradient(once, 1);
    optimizer->step();
    reference->step();
    EXPECT_TRUE(tied.equal(once));
  }
}

TEST(Optimizer, KeepsHandlesSoThatAParameterMayGetOtherStorageLater) {
  // What fully_shard does to a parameter that an optimizer holds already.
  const Tensor weight = parameter({4});
  fsdp::SGD optimizer({weight}, {.lr = 0.5});
  weight.set_data(at::full({2}, 3.0));
  set_gradient(weight, 1);
  optimizer.step();
  EXPECT_TRUE(weight.equal(at::full({2}, 2.5)));
}

TEST(Optimizer, TakesAnEmptyShardAndNoParametersAtAll) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor empty = parameter({0, 4});
    set_gradient(empty, 1);
    make({empty})->step();
    EXPECT_EQ(empty.numel(), 0);
    make({})->step();
  }
}

TEST(Optimizer, FollowsAGradientThatIsLaidOutOtherwise) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor plain = parameter({2, 3});
    const Tensor strided = parameter({2, 3});
    const Tensor values =
        at::ones({2, 3}).mul(at::full({3}, 2.0).cumsum(0)); // 2, 4, 6 a row
    plain.mutable_grad() = values.clone();
    strided.mutable_grad() = values.t().contiguous().t();
    ASSERT_FALSE(strided.grad().is_contiguous());
    make({plain})->step();
    make({strided})->step();
    EXPECT_TRUE(plain.equal(strided));
  }
}

TEST(Optimizer, LeavesNoTraceInTheGraph) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor weight = parameter({3});
    set_gradient(weight, 1);
    make({weight})->step();
    EXPECT_TRUE(weight.is_leaf());
    EXPECT_TRUE(weight.requires_grad());
  }
}

TEST(Optimizer, RefusesAGradientOfAnotherShape) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor first = parameter({2});
    const Tensor weight = parameter({4, 3});
    const auto optimizer = make({first, weight});
    set_gradient(first, 1);
    set_gradient(weight, 1);
    // As a shard is swapped in below a gradient.
    weight.set_data(at::ones({2, 3}));
    EXPECT_EQ(
        usage_error_of([&] { optimizer->step(); }),
        name +
            ": parameter 1 has shape [2, 3] but a gradient of shape [4, 3]: "
            "call step() after backward() has returned, and do not assign full "
            "gradients to sharded parameters");
    EXPECT_TRUE(first.equal(at::ones({2}))) << "stepped before the check";
  }
}

TEST(Optimizer, RefusesASparseGradient) {
  const Tensor weight = parameter({2, 3});
  weight.mutable_grad() = at::ones({2, 3}).to_sparse();
  fsdp::SGD optimizer({weight}, {.lr = 0.1});
  EXPECT_EQ(
      usage_error_of([&] { optimizer.step(); }),
      "SGD: parameter 0 has a sparse gradient, expected a dense one: make the "
      "embedding with sparse(false)");
}

TEST(Optimizer, RefusesAParameterWithGapsInMemory) {
  const Tensor weight =
      at::ones({4, 6}).slice(1, 0, 3).detach().requires_grad_(true);
  set_gradient(weight, 1);
  fsdp::AdamW optimizer({weight});
  EXPECT_EQ(
      usage_error_of([&] { optimizer.step(); }),
      "AdamW: parameter 0 of shape [4, 3] has gaps in memory, expected a dense "
      "tensor: make it with contiguous() or clone()");
}

TEST(Optimizer, RefusesStateOfAnotherShapeOrDtype) {
  for (const auto& [name, make] : kOptimizers) {
    SCOPED_TRACE(name);
    const Tensor weight = parameter({4});
    const auto optimizer = make({weight});
    set_gradient(weight, 1);
    optimizer->step();
    weight.mutable_grad() = Tensor();
    weight.set_data(at::ones({2}));
    set_gradient(weight, 1);
    EXPECT_EQ(
        usage_error_of([&] { optimizer->step(); }),
        name +
            ": parameter 0 is Float [2] but its optimizer state was made for "
            "Float [4]: construct the optimizer after fully_shard and "
            "to(dtype)");
    EXPECT_TRUE(weight.equal(at::ones({2})));
  }
}

TEST(Optimizer, RefusesWhatIsNoParameter) {
  EXPECT_EQ(
      usage_error_of([] {
        fsdp::AdamW({parameter({1}), Tensor()});
      }),
      "AdamW: parameter 1 is an undefined tensor, expected a parameter");
  EXPECT_EQ(
      usage_error_of([] { fsdp::Adam({at::ones({2}, at::kLong)}); }),
      "Adam: parameter 0 has dtype Long, expected a real floating type: leave "
      "it out");
}

TEST(Optimizer, RefusesOptionsOutOfRange) {
  const auto adamw = [](auto&& change) {
    return usage_error_of([&] {
      fsdp::AdamWOptions options;
      change(options);
      fsdp::AdamW({parameter({1})}, options);
    });
  };
  EXPECT_EQ(
      adamw([](auto& options) { options.lr = -1; }),
      "AdamW: lr is -1, expected a finite number of at least 0");
  EXPECT_EQ(
      adamw([](auto& options) { options.beta1 = 1; }),
      "AdamW: beta1 is 1, expected a number in [0, 1)");
  EXPECT_EQ(
      adamw([](auto& options) { options.beta2 = -0.1; }),
      "AdamW: beta2 is -0.1, expected a number in [0, 1)");
  EXPECT_EQ(
      adamw([](auto& options) { options.eps = -1e-8; }),
      "AdamW: eps is -1e-08, expected a finite number of at least 0");
  EXPECT_EQ(
      adamw([](auto& options) { options.weight_decay = -0.01; }),
      "AdamW: weight_decay is -0.01, expected a finite number of at least 0");
  const auto sgd = [](auto&& change) {
    return usage_error_of([&] {
      fsdp::SGDOptions options;
      change(options);
      fsdp::SGD({parameter({1})}, options);
    });
  };
  EXPECT_EQ(
      sgd([](auto& options) { options.momentum = -0.5; }),
      "SGD: momentum is -0.5, expected a finite number of at least 0");
  EXPECT_EQ(
      sgd([](auto& options) { options.dampening = INFINITY; }),
      "SGD: dampening is inf, expected a finite number");
  EXPECT_EQ(
      sgd([](auto& options) { options.nesterov = true; }),
      "SGD: nesterov is set, expected a momentum above 0 and no dampening");
}

TEST(Optimizer, TakesOptionsByNameAndTorchsDefaultsForTheOthers) {
  EXPECT_EQ(fsdp::AdamW({parameter({1})}, {.beta2 = 0.95}).lr(), 1e-3);
  EXPECT_EQ(fsdp::Adam({parameter({1})}, {.lr = 3e-4}).lr(), 3e-4);
  EXPECT_EQ(fsdp::SGD({parameter({1})}).lr(), 1e-3);
  const fsdp::AdamWOptions adamw{.lr = 3e-4, .beta2 = 0.95};
  EXPECT_EQ(adamw.beta1, 0.9);
  EXPECT_EQ(adamw.weight_decay, 1e-2);
}

TEST(Optimizer, RefusesALearningRateThatIsNoNumber) {
  for (const auto& [name, make] : kOptimizers) {
    const Tensor weight = parameter({1});
    const auto optimizer = make({weight});
    set_gradient(weight, 1);
    optimizer->set_lr(NAN);
    EXPECT_EQ(
        usage_error_of([&] { optimizer->step(); }),
        name + ": lr is nan, expected a finite number of at least 0");
  }
}

} // namespace
