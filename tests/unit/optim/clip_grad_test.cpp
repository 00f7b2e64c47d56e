// One global norm over shards, against a plain float64 norm of the whole
// gradients.

#include "fsdp/clip_grad.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "fsdp/optim.h"
#include "support/ranks.h"

namespace fsdp {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// loss = sum(w * x), so that the gradient of w is the mean of x over ranks.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(Shape shape)
      : weight(register_parameter("weight", at::ones(shape))) {}
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
  at::Tensor weight;
};
FSDP_MODULE(Scale);

/// Two units, and a parameter that no unit manages.
struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : first(register_module("first", Scale(Shape{5, 3}))),
        second(register_module("second", Scale(Shape{2}))),
        whole(register_parameter("whole", at::ones({4}))) {}
  at::Tensor forward(
      const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return first(a) + second(b) + (whole * c).sum();
  }
  Scale first;
  Scale second;
  at::Tensor whole;
};
FSDP_MODULE(Mixed);

double plain_norm(const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) {
    flat.push_back(tensor.to(at::kDouble).reshape({-1}));
  }
  return at::linalg_vector_norm(at::cat(flat), p).item<double>();
}

at::Tensor sines(Shape shape, double phase) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) {
    numel *= size;
  }
  return at::arange(numel, at::kFloat).add(phase).sin().view(shape);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ClipGradNorm, IsOneNormOverAllShardsOnEveryRank) {
  // The locals are 3 and 4 on two ranks.
  for (const int size : {1, 2, 3, 4, 8}) {
    testing::with_ranks(size, [](const ProcessGroup& world) {
      Scale model(Shape{4});
      fully_shard(model, {.mesh = testing::shard_mesh(world)});
      model(at::tensor({3.0F, 0.0F, 0.0F, 4.0F})).backward();
      const double norm = clip_grad_norm_(*model, 1.0);
      EXPECT_NEAR(norm, 5.0, 1e-6);
      const ShardInfo info = shard_infos(*model).at(0);
      const at::Tensor expected = at::tensor({0.6F, 0.0F, 0.0F, 0.8F})
                                      .narrow(0, info.row_begin, info.num_rows);
      EXPECT_TRUE(at::allclose(model->weight.grad(), expected, 0, 1e-6));
    });
  }
}

TEST(
    ClipGradNorm, EqualsThePlainNormForEveryPowerAndCountsWholeParametersOnce) {
  const at::Tensor a = sines({5, 3}, 1), b = sines({2}, 2), c = sines({4}, 3);
  for (const double p : {0.5, 1.0, 2.0, 3.0, 7.5, 300.0, kInfinity}) {
    for (const int size : {1, 3}) {
      SCOPED_TRACE(std::to_string(p) + " on " + std::to_string(size));
      testing::with_ranks(size, [&](const ProcessGroup& world) {
        Mixed model;
        const DeviceMesh mesh = testing::shard_mesh(world);
        fully_shard(model->first, {.mesh = mesh});
        fully_shard(model->second, {.mesh = mesh});
        model(a, b, c).backward();
        const double expected = plain_norm({a, b, c}, p);
        const double norm = clip_grad_norm_(*model, 0.5 * expected, p);
        EXPECT_NEAR(norm, expected, 1e-6 * expected);
        EXPECT_TRUE(at::allclose(model->whole.grad(), 0.5 * c, 1e-5, 0));
        EXPECT_NEAR(
            clip_grad_norm_(*model, kInfinity, p),
            0.5 * expected,
            1e-5 * expected);
      });
    }
  }
}

TEST(ClipGradNorm, LeavesGradientsBelowTheLimitBitEqual) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Scale model(Shape{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model(sines({4}, 1)).backward();
    const at::Tensor before = model->weight.grad().clone();
    clip_grad_norm_(*model, 100.0);
    EXPECT_TRUE(model->weight.grad().equal(before));
  });
}

/// A world of one with `values` as the gradient of a sharded parameter.
void with_gradient(
    const at::Tensor& values, const std::function<void(Scale&)>& body) {
  testing::with_ranks(1, [&](const ProcessGroup& world) {
    Scale model(values.sizes().vec());
    model->to(values.scalar_type());
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model->weight.mutable_grad() = values.clone();
    body(model);
  });
}

TEST(ClipGradNorm, IsExactOverMillionsOfElements) {
  const at::Tensor values = sines({3'000'001}, 0);
  with_gradient(values, [&](Scale& model) {
    for (const double p : {1.0, 2.0}) {
      const double expected = plain_norm({values}, p);
      EXPECT_NEAR(
          clip_grad_norm_(*model, kInfinity, p), expected, 1e-6 * expected);
    }
  });
}

TEST(ClipGradNorm, HoldsGradientsWhoseSquaresAreOutOfRange) {
  for (const double scale : {1e30, 1e-30}) {
    with_gradient(at::tensor({3.0F, 4.0F}).mul_(scale), [&](Scale& model) {
      EXPECT_NEAR(clip_grad_norm_(*model, kInfinity) / scale, 5, 1e-5);
    });
  }
}

TEST(ClipGradNorm, TakesHalfPrecisionAndDoubleGradients) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor values = sines({9000}, 0).to(dtype);
    with_gradient(values, [&](Scale& model) {
      const double expected = plain_norm({values}, 2);
      EXPECT_NEAR(
          clip_grad_norm_(*model, kInfinity), expected, 1e-5 * expected);
    });
  }
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : one(register_parameter("one", at::ones({2}))),
        two(register_parameter("two", one)) {}
  at::Tensor forward(const at::Tensor& x) { return (one * x * two).sum(); }
  at::Tensor one, two;
};
FSDP_MODULE(Tied);

TEST(ClipGradNorm, CountsAndScalesATiedParameterOnce) {
  testing::with_ranks(1, [](const ProcessGroup& world) {
    Tied model;
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model->one.mutable_grad() = at::tensor({3.0F, 4.0F});
    EXPECT_NEAR(clip_grad_norm_(*model, 2.5), 5.0, 1e-6);
    EXPECT_TRUE(
        at::allclose(model->one.grad(), at::tensor({1.5F, 2.0F}), 0, 1e-6));
  });
}

TEST(ClipGradNorm, ArgumentsThatDifferByRankAreNamed) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Scale model(std::vector<std::int64_t>{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    const std::string text = message_of(
        [&] { clip_grad_norm_(*model, world.rank() == 0 ? 1.0 : 0.5, 1); });
    EXPECT_THAT(
        text,
        ::testing::HasSubstr(
            "rank 0 asks for all_gather(float64, 4 elements) for "
            "'clip_grad_norm_(max_norm 1, norm_type 1)', rank 1 for "
            "all_gather(float64, 4 elements) for 'clip_grad_norm_(max_norm "
            "0.5, norm_type 1)'"));
  });
}

TEST(ClipGradNorm, RefusesAModuleThatIsNotSharded) {
  testing::with_ranks(2, [](const ProcessGroup&) {
    struct Plain : torch::nn::Module {
      Plain() : Module("Plain") {}
      at::Tensor weight = register_parameter("weight", at::ones({2}));
    } model;
    model.weight.mutable_grad() = at::ones({2});
    EXPECT_EQ(
        message_of([&] { clip_grad_norm_(model, 0.1); }),
        "clip_grad_norm_: no unit manages a parameter of module 'Plain'; call "
        "fully_shard first");
    EXPECT_TRUE(model.weight.grad().equal(at::ones({2})));
  });
}

TEST(ClipGradNorm, TakesAModuleWhoseParametersTheUnitAroundItManages) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Mixed model;
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model(sines({5, 3}, 1), at::tensor({3.0F, 4.0F}), sines({4}, 3)).backward();
    EXPECT_NEAR(clip_grad_norm_(*model->second, 1.0), 5.0, 1e-6);
  });
}

TEST(ClipGradNorm, IsZeroWithoutGradientsOnAnyRank) {
  testing::with_ranks(3, [](const ProcessGroup& world) {
    Scale model(Shape{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    EXPECT_EQ(clip_grad_norm_(*model, 1.0), 0.0);
  });
}

TEST(ClipGradNorm, NamesTheRanksWhoseShardsAreNotFiniteOnEveryRank) {
  testing::with_ranks(4, [](const ProcessGroup& world) {
    Scale model(Shape{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model(at::ones({4})).backward();
    if (world.rank() == 1 || world.rank() == 3) {
      model->weight.mutable_grad().fill_(std::nan(""));
    }
    const at::Tensor before = model->weight.grad().clone();
    EXPECT_EQ(
        message_of([&] { clip_grad_norm_(*model, 0.1, 2.0, true); }),
        "[rank " + std::to_string(world.rank()) +
            "] clip_grad_norm_: the gradients' norm is nan, expected a finite "
            "one; not finite on ranks 1 and 3; no gradient was changed: skip "
            "this step, or lower the learning rate");
    EXPECT_TRUE(std::isnan(clip_grad_norm_(*model, 0.1)));
    EXPECT_TRUE(model->weight.grad().equal(before) || world.rank() % 2 == 1)
        << "a finite gradient was scaled by NaN";
  });
}

TEST(ClipGradNorm, SeesAnInfinityOfOneRankEverywhere) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Scale model(Shape{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    model(at::ones({4})).backward();
    if (world.rank() == 1) {
      model->weight.mutable_grad().fill_(kInfinity);
    }
    const at::Tensor before = model->weight.grad().clone();
    for (const double p : {2.0, kInfinity}) {
      EXPECT_EQ(clip_grad_norm_(*model, 0.1, p), kInfinity);
      EXPECT_TRUE(model->weight.grad().equal(before)) << "scaled to zero";
    }
    EXPECT_THAT(
        message_of([&] { clip_grad_norm_(*model, 0.1, 2.0, true); }),
        ::testing::HasSubstr("norm is inf, expected a finite one; not finite "
                             "on rank 1; no gradient"));
  });
}

TEST(ClipGradNorm, AgreesOnAWholeParameterThatDiffersByRank) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Mixed model;
    const DeviceMesh mesh = testing::shard_mesh(world);
    fully_shard(model->first, {.mesh = mesh});
    fully_shard(model->second, {.mesh = mesh});
    const bool is_odd = world.rank() == 1;
    model->whole.mutable_grad() = at::full({4}, is_odd ? 7.0F : 1.0F);
    EXPECT_NEAR(clip_grad_norm_(*model, kInfinity), 2.0, 1e-6);
    if (is_odd) {
      model->whole.mutable_grad().fill_(std::nan(""));
    }
    EXPECT_TRUE(std::isnan(clip_grad_norm_(*model, 1.0)));
    EXPECT_THAT(
        message_of([&] { clip_grad_norm_(*model, 1.0, 2.0, true); }),
        ::testing::HasSubstr("not finite on rank 1;"));
  });
}

TEST(ClipGradNorm, RefusesNumbersOutOfRange) {
  Scale model(Shape{2});
  EXPECT_EQ(
      message_of([&] { clip_grad_norm_(*model, 1.0, 0.0); }),
      "clip_grad_norm_: norm_type is 0, expected a number above 0, or "
      "infinity");
  EXPECT_EQ(
      message_of([&] { clip_grad_norm_(*model, -1.0); }),
      "clip_grad_norm_: max_norm is -1, expected a number of at least 0");
  EXPECT_EQ(
      message_of([&] { clip_grad_norm_(*model, std::nan("")); }),
      "clip_grad_norm_: max_norm is nan, expected a number of at least 0");
}

TEST(Optimizer, RefusesAGatheredParameterByName) {
  testing::with_ranks(2, [](const ProcessGroup& world) {
    Scale model(Shape{4});
    fully_shard(model, {.mesh = testing::shard_mesh(world)});
    AdamW optimizer(model->parameters());
    model(at::ones({4})).backward();
    unshard(*model);
    EXPECT_EQ(
        message_of([&] { optimizer.step(); }),
        "[rank " + std::to_string(world.rank()) +
            "] AdamW: parameter 'weight' of the root unit is gathered, "
            "expected "
            "this rank's shard: call reshard() before step(), and step() after "
            "backward() has returned");
    reshard(*model);
    optimizer.step();
    EXPECT_NEAR(model->weight.max().item<double>(), 0.999, 1e-4);
  });
}

std::unique_ptr<SGD> make_sgd(Scale& model) {
  return std::make_unique<SGD>(model->parameters(), SGDOptions{.lr = 0.1});
}

TEST(Optimizer, TrainsTheShardsOfAModelThatWasForwardedOrListedBefore) {
  // w = 1 - 0.1 * 1 everywhere, whether the optimizer was made before sharding
  // or after a forward without grad.
  for (const bool is_made_before : {true, false}) {
    testing::with_ranks(2, [&](const ProcessGroup& world) {
      Scale model(Shape{8});
      std::unique_ptr<SGD> optimizer;
      if (is_made_before) {
        optimizer = make_sgd(model);
      }
      fully_shard(model, {.mesh = testing::shard_mesh(world)});
      if (!is_made_before) {
        {
          const at::NoGradGuard no_grad;
          model(at::ones({8}));
        }
        optimizer = make_sgd(model);
      }
      model(at::ones({8})).backward();
      optimizer->step();
      const auto full = full_parameters(*model);
      EXPECT_TRUE(at::allclose(full.at(0).second, at::full({8}, 0.9), 0, 1e-6));
    });
  }
}

} // namespace
} // namespace fsdp
