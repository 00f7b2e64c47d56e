// Gradients after backward(): the mean over ranks, over shards of every size,
// accumulated over backwards, in units of every shape.

#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <atomic>

#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using testing::OnRanks;
using testing::Scale;
using testing::shard_mesh;
using testing::Stack;
using testing::whole_batch;
using testing::with_ranks;

Tensor full(double value, c10::ScalarType dtype, std::int64_t numel = 4) {
  return at::full({numel}, value, dtype);
}

class MeanOverRanks : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    MeanOverRanks,
    ::testing::Values(
        std::tuple{"inproc", 2},
        std::tuple{"inproc", 4},
        std::tuple{"gloo", 2},
        std::tuple{"gloo", 4}),
    testing::name_of_ranks);

// B71.
TEST_P(MeanOverRanks, IsTheMeanInEveryFloatingDtype) {
  run([this](const ProcessGroup& world) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      Scale model(full(0, dtype));
      fully_shard(model, {.mesh = shard_mesh(world)});
      model(full(world.rank() + 1, dtype)).sum().backward();
      const double mean = size() == 2 ? 1.5 : 2.5;
      const auto rows = model->weight.numel();
      ASSERT_TRUE(model->weight.grad().defined()) << dtype;
      EXPECT_TRUE(at::equal(model->weight.grad(), full(mean, dtype, rows)))
          << dtype << model->weight.grad();
      testing::sgd_step(*model);
      const Tensor expected = full(-0.1 * mean, dtype, rows);
      EXPECT_TRUE(at::allclose(model->weight, expected, 1e-3, 1e-3)) << dtype;
    }
  });
}

// B56.
TEST_P(MeanOverRanks, OfHalfNeitherOverflowsNorVanishes) {
  run([](const ProcessGroup& world) {
    for (const double gradient : {30000.0, 6e-8}) {
      for (const bool own_dtype : {true, false}) {
        Scale model(full(1, own_dtype ? at::kHalf : at::kFloat));
        FullyShardOptions options{.mesh = shard_mesh(world)};
        options.mp_policy.param_dtype = at::kHalf;
        fully_shard(model, options);
        model(full(gradient, at::kHalf)).sum().backward();
        const Tensor grad = model->weight.grad().to(at::kFloat);
        EXPECT_TRUE(at::equal(
            grad, full(gradient, at::kHalf, grad.numel()).to(at::kFloat)))
            << grad;
      }
    }
  });
}

struct DummyPassImpl : torch::nn::Module {
  DummyPassImpl()
      : enc(register_module("enc", Scale(at::ones({4})))),
        trunk(register_module("trunk", Scale(at::ones({4})))) {}
  Tensor forward(const Tensor& x0, const Tensor& x1, double times) {
    return trunk(x0 + times * enc(x1));
  }
  Scale enc;
  Scale trunk;
};
FSDP_MODULE(DummyPass);

// B88.
TEST(Gradients, DivideByAllRanksAlsoThoseThatAddZero) {
  for (const char* backend : {"inproc", "gloo"}) {
    with_ranks(
        2,
        [](const ProcessGroup& world) {
          DummyPass model;
          fully_shard(model->enc, {.mesh = shard_mesh(world)});
          fully_shard(model->trunk, {.mesh = shard_mesh(world)});
          fully_shard(model, {.mesh = shard_mesh(world)});
          const bool has_data = world.rank() == 0;
          model(
              full(1, at::kFloat),
              full(has_data ? 2 : 1, at::kFloat),
              has_data ? 1 : 0)
              .sum()
              .backward();
          EXPECT_TRUE(
              at::equal(model->enc->weight.grad(), full(1, at::kFloat, 2)));
          EXPECT_TRUE(
              at::equal(model->trunk->weight.grad(), full(2, at::kFloat, 2)));
        },
        backend);
  }
}

class Gradients : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    Gradients,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

TEST_P(Gradients, FollowThePlainModuleStepAfterStep) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 3; ++step) {
      const Tensor expected = loss_of(plain, whole_batch(step));
      expected.backward();
      const Tensor loss = loss_of(model, batch_of(world.rank(), size(), step));
      loss.backward();
      EXPECT_NEAR(
          testing::mean_over_ranks(world, loss.item<double>()),
          expected.item<double>(),
          1e-12);
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*model);
      testing::sgd_step(*plain);
      plain->zero_grad();
      model->zero_grad();
    }
    testing::expect_params_of(*model, *plain);
  });
}

TEST_P(Gradients, AccumulateOverBackwardsAsOverOneBigBatch) {
  for (const bool sync_each : {true, false}) {
    run([&](const ProcessGroup& world) {
      Stack plain;
      Stack model;
      testing::shard_stack(model, world);
      constexpr int kMicroBatches = 4;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        loss_of(plain, whole_batch(micro)).backward();
        const bool is_last = micro == kMicroBatches - 1;
        set_requires_gradient_sync(*model, sync_each || is_last);
        loss_of(model, batch_of(world.rank(), size(), micro)).backward();
        if (!sync_each && !is_last) {
          EXPECT_FALSE(model->first->weight.grad().defined());
        }
      }
      testing::expect_grads_of(*model, *plain);
      EXPECT_EQ(
          runtime_counters(*model).num_reductions,
          4 * (sync_each ? kMicroBatches : 1));
    });
  }
}

// The sum over micro-batches adds to a gradient that is there already.
TEST_P(Gradients, KeptUnreducedAddToReducedOnes) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int micro = 0; micro < 3; ++micro) {
      loss_of(plain, whole_batch(micro)).backward();
      set_requires_gradient_sync(*model, micro != 1);
      loss_of(model, batch_of(world.rank(), size(), micro)).backward();
    }
    testing::expect_grads_of(*model, *plain);
  });
}

TEST_P(Gradients, SyncIsChosenForOneUnitWithoutRecursion) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    set_requires_gradient_sync(*model, false, /*recurse=*/false);
    loss_of(plain, whole_batch()).backward();
    loss_of(model, batch_of(world.rank(), size())).backward();
    EXPECT_EQ(runtime_counters(*model).num_reductions, 3);
    EXPECT_FALSE(model->first->weight.grad().defined());
    const auto block = model->blocks[0]->as<testing::Block>();
    EXPECT_TRUE(block->in->weight.grad().defined());

    set_requires_gradient_sync(*model, true, /*recurse=*/false);
    loss_of(plain, whole_batch(1)).backward();
    loss_of(model, batch_of(world.rank(), size(), 1)).backward();
    testing::expect_grads_of(*model, *plain);
  });
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embed(register_module("embed", torch::nn::Embedding(5, 4))),
        head(register_parameter("head", embed->weight)) {
    c10::AutoGradMode grad_off(false);
    head.copy_(0.01 * at::arange(20).view({5, 4}) - 0.1);
  }
  Tensor forward(const Tensor& tokens) {
    return at::linear(embed(tokens), head);
  }
  torch::nn::Embedding embed;
  Tensor head;
};
FSDP_MODULE(Tied);

// TIED.
TEST(TiedParameters, GiveTheGoldenLossesAndOneGradient) {
  const auto tokens = [](bool second) {
    return (at::arange(3, at::kLong) + (second ? 3 : 0)).remainder(5);
  };
  const auto targets = [&](bool second) {
    return (tokens(second) + 1).remainder(5);
  };
  for (const auto& [backend, size] :
       {std::pair{"inproc", 2}, {"inproc", 4}, {"gloo", 2}}) {
    with_ranks(
        size,
        [&](const ProcessGroup& world) {
          Tied plain;
          Tied model;
          fully_shard(model, {.mesh = shard_mesh(world)});
          ASSERT_EQ(model->parameters().size(), plain->parameters().size());
          const bool second = world.rank() % 2 == 1;
          for (int step = 0; step < 2; ++step) {
            std::vector<double> expected;
            Tensor sum;
            for (const bool half : {false, true}) {
              const auto loss =
                  at::cross_entropy_loss(plain(tokens(half)), targets(half));
              expected.push_back(loss.item<double>());
              sum = sum.defined() ? sum + loss : loss;
            }
            (sum / 2).backward();
            const auto loss =
                at::cross_entropy_loss(model(tokens(second)), targets(second));
            loss.backward();
            EXPECT_NEAR(loss.item<double>(), expected[second], 1e-6);
            if (step == 0) {
              EXPECT_NEAR(
                  loss.item<double>(), second ? 1.6092913 : 1.6052504, 1e-6);
            }
            EXPECT_TRUE(model->embed->weight.is_same(model->head));
            testing::expect_grads_of(*model, *plain, 1e-6);
            testing::sgd_step(*model);
            testing::sgd_step(*plain);
            model->zero_grad();
            plain->zero_grad();
          }
          testing::expect_params_of(*model, *plain, 1e-6);
        },
        backend);
  }
}

/// Parameters of awkward sizes; the gradient of each is a number times x.
struct TablesImpl : torch::nn::Module {
  explicit TablesImpl(const std::vector<std::vector<std::int64_t>>& shapes) {
    for (const auto& shape : shapes) {
      tables.push_back(register_parameter(
          "table" + std::to_string(tables.size()),
          at::zeros(shape, at::kFloat)));
    }
    testing::fill_distinct(*this);
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = at::zeros({});
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const auto k = at::arange(tables[i].numel()).view(tables[i].sizes());
      sum = sum + (tables[i] * k.remainder(17) * x).sum() *
                      (1.0 + static_cast<double>(i));
    }
    return sum;
  }
  std::vector<Tensor> tables;
};
FSDP_MODULE(Tables);

class Shards : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    Shards,
    ::testing::Values(
        std::tuple{"inproc", 2},
        std::tuple{"inproc", 3},
        std::tuple{"inproc", 4},
        std::tuple{"inproc", 8},
        std::tuple{"gloo", 4},
        std::tuple{"gloo", 8}),
    testing::name_of_ranks);

// B30.
TEST_P(Shards, MayBeUnevenOrEmpty) {
  run([this](const ProcessGroup& world) {
    const std::vector<std::vector<std::int64_t>> shapes{
        {5}, {1, 3}, {9, 2, 2}, {32001, 2}};
    Tables plain(shapes);
    Tables model(shapes);
    fully_shard(model, {.mesh = shard_mesh(world)});
    const auto infos = shard_infos(*model);
    ASSERT_EQ(infos.size(), shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto num_rows = shapes[i][0];
      const auto per_rank = (num_rows + size() - 1) / size();
      const auto begin = std::min(num_rows, world.rank() * per_rank);
      const auto count = std::min(per_rank, num_rows - begin);
      EXPECT_EQ(infos[i].full_sizes, shapes[i]);
      EXPECT_EQ(infos[i].num_rows, count);
      EXPECT_EQ(model->tables[i].size(0), count);
      if (count > 0) {
        EXPECT_EQ(infos[i].row_begin, begin);
      }
    }
    if (size() == 8) {
      EXPECT_EQ(infos[3].num_rows, world.rank() == 7 ? 3994 : 4001);
      EXPECT_EQ(infos[3].row_begin, 4001 * world.rank());
    }
    const auto whole = full_parameters(*model);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_TRUE(at::equal(whole[i].second, plain->tables[i]));
    }
    for (int step = 0; step < 2; ++step) {
      // Bit-equal: it is the same sum in the same order.
      const Tensor sum = model(at::full({1}, world.rank() + 1.0));
      EXPECT_TRUE(at::equal(sum, plain(at::full({1}, world.rank() + 1.0))));
      sum.backward();
      model->zero_grad();
      unshard(*model);
      EXPECT_TRUE(at::equal(model->tables[3], plain->tables[3]));
      reshard(*model);
    }
    plain->zero_grad();
    plain(at::full({1}, (size() + 1) / 2.0)).backward();
    model(at::full({1}, world.rank() + 1.0)).backward();
    testing::expect_grads_of(*model, *plain, 1e-6);
  });
}

TEST_P(Shards, OfMoreParametersThanAMaskHasBits) {
  run([this](const ProcessGroup& world) {
    std::vector<std::vector<std::int64_t>> shapes;
    for (std::int64_t rows = 1; rows <= 80; ++rows) {
      shapes.push_back({rows});
    }
    Tables plain(shapes);
    Tables model(shapes);
    fully_shard(model, {.mesh = shard_mesh(world)});
    plain(at::full({1}, (size() + 1) / 2.0)).backward();
    model(at::full({1}, world.rank() + 1.0)).backward();
    testing::expect_grads_of(*model, *plain, 1e-6);
  });
}

TEST_P(Gradients, FeedTheOptimizersOfLibTorch) {
  run([this](const ProcessGroup& world) {
    for (const bool adam : {false, true}) {
      Stack plain;
      Stack model;
      testing::shard_stack(model, world);
      const auto make =
          [adam](Stack& of) -> std::unique_ptr<torch::optim::Optimizer> {
        if (adam) {
          return std::make_unique<torch::optim::AdamW>(of->parameters(), 1e-2);
        }
        return std::make_unique<torch::optim::SGD>(
            of->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      };
      const auto plain_optimizer = make(plain);
      const auto optimizer = make(model);
      for (int step = 0; step < 3; ++step) {
        loss_of(plain, whole_batch(step)).backward();
        loss_of(model, batch_of(world.rank(), size(), step)).backward();
        plain_optimizer->step();
        optimizer->step();
        plain_optimizer->zero_grad();
        optimizer->zero_grad();
      }
      testing::expect_params_of(*model, *plain, 1e-9);
    }
  });
}

TEST_P(Gradients, PassTheUsersOwnHooksOnce) {
  run([this](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    const Tensor& weight = model->last->weight;
    int num_calls = 0;
    std::vector<std::int64_t> sizes;
    weight.register_hook([&](const Tensor& grad) {
      ++num_calls;
      sizes = grad.sizes().vec();
    });
    for (int step = 0; step < 3; ++step) {
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      EXPECT_EQ(num_calls, step + 1);
    }
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{2, testing::kWidth}));
    EXPECT_TRUE(weight.grad().defined());
  });
}

} // namespace
} // namespace fsdp
