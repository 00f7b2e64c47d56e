// Units of which only a part gets gradients: frozen, unused, or on some ranks.

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using testing::Block;
using testing::OnRanks;
using testing::Scale;
using testing::shard_mesh;
using testing::Stack;
using testing::whole_batch;

class PartialGradients : public OnRanks {
 protected:
  /// One backward of `model` with loss_of_rank(model, own rank) and one of
  /// `plain` with the mean over ranks; the gradients must be the same.
  template <typename Model, typename Loss>
  void expect_mean_grads(
      const ProcessGroup& world,
      Model& model,
      Model& plain,
      const Loss& loss_of_rank) const {
    Tensor sum = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < size(); ++rank) {
      sum = sum + loss_of_rank(plain, rank);
    }
    (sum / size()).backward();
    loss_of_rank(model, world.rank()).backward();
    testing::expect_grads_of(*model, *plain);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    PartialGradients,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

/// With an optional factor on its output.
struct OptionalBlockImpl : torch::nn::Module {
  OptionalBlockImpl()
      : block(register_module(
            "block", torch::nn::Linear(testing::kWidth, testing::kWidth))),
        factor(register_parameter("factor", at::ones({testing::kWidth}))) {}
  Tensor forward(const Tensor& x, bool with_factor) {
    const auto y = x + at::tanh(block(x));
    return with_factor ? y * factor : y;
  }
  torch::nn::Linear block;
  Tensor factor;
};
FSDP_MODULE(OptionalBlock);

enum Used { kFactor0 = 1, kFactor1 = 2, kGain = 4, kSide = 8, kAll = 15 };

/// A forward may leave out unit `side`, the factors of `a` and `b`, and `gain`
/// of the root, whose other gradients come before those of all other units.
struct OptionalImpl : torch::nn::Module {
  OptionalImpl()
      : first(register_module(
            "first", HookedHolder<torch::nn::LinearImpl>(3, testing::kWidth))),
        a(register_module("a", OptionalBlock())),
        b(register_module("b", OptionalBlock())),
        side(register_module("side", Block())),
        last(register_module("last", torch::nn::Linear(testing::kWidth, 2))),
        gain(register_parameter("gain", at::ones({2}))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x, int used) {
    auto hidden = a(first(x), (used & kFactor0) != 0);
    hidden = b(hidden, (used & kFactor1) != 0);
    if (used & kSide) {
      hidden = side(hidden);
    }
    const auto y = last(hidden);
    return used & kGain ? y * gain : y;
  }
  HookedHolder<torch::nn::LinearImpl> first;
  OptionalBlock a;
  OptionalBlock b;
  Block side;
  torch::nn::Linear last;
  Tensor gain;
};
FSDP_MODULE(Optional);

void shard(Optional& model, const ProcessGroup& world) {
  const FullyShardOptions options{.mesh = shard_mesh(world)};
  fully_shard(model->first, options);
  fully_shard(model->a, options);
  fully_shard(model->b, options);
  fully_shard(model->side, options);
  fully_shard(model, options);
}

TEST_P(PartialGradients, AreUndefinedWhereNoRankUsedTheParameter) {
  for (const int unused : {kFactor0, kFactor1, kGain, kSide}) {
    run([&](const ProcessGroup& world) {
      Optional plain;
      Optional model;
      shard(model, world);
      expect_mean_grads(world, model, plain, [&](Optional& m, int rank) {
        const auto batch = batch_of(rank, size());
        return at::mse_loss(m(batch.x, kAll & ~unused), batch.y);
      });
      // The next step uses everything.
      expect_mean_grads(world, model, plain, [&](Optional& m, int rank) {
        const auto batch = batch_of(rank, size(), 1);
        return at::mse_loss(m(batch.x, kAll), batch.y);
      });
    });
  }
}

TEST_P(PartialGradients, CountAsZeroOnRanksThatLeaveTheParameterOut) {
  for (const int unused : {kFactor0, kFactor1, kGain}) {
    run([&](const ProcessGroup& world) {
      Optional plain;
      Optional model;
      shard(model, world);
      for (int step = 0; step < 2; ++step) {
        expect_mean_grads(world, model, plain, [&](Optional& m, int rank) {
          const auto batch = batch_of(rank, size(), step);
          const bool leaves_out = rank % 2 == step;
          return at::mse_loss(
              m(batch.x, leaves_out ? kAll & ~unused : kAll), batch.y);
        });
      }
    });
  }
}

// The unit's backward is not part of the one that reduces.
TEST_P(PartialGradients, OfAUnitUsedInAnEarlierMicroBatchOnlyAreReduced) {
  run([this](const ProcessGroup& world) {
    Optional plain;
    Optional model;
    shard(model, world);
    for (int round = 0; round < 2; ++round) {
      for (int micro = 0; micro < 2; ++micro) {
        const auto loss = [&](Optional& m, int rank) {
          const auto batch = batch_of(rank, size(), 2 * round + micro);
          return at::mse_loss(
              m(batch.x, micro == 0 ? kAll : kAll & ~kSide), batch.y);
        };
        set_requires_gradient_sync(*model, micro == 1);
        if (micro == 0) {
          Tensor sum = at::zeros({}, at::kDouble);
          for (int rank = 0; rank < size(); ++rank) {
            sum = sum + loss(plain, rank);
          }
          (sum / size()).backward();
          loss(model, world.rank()).backward();
        } else {
          expect_mean_grads(world, model, plain, loss);
        }
      }
    }
  });
}

TEST_P(PartialGradients, LeaveFrozenParametersAloneAndFollowUnfreezing) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    // A unit partly frozen, one wholly, and a part of the root.
    const auto freeze = [](Stack& m, bool frozen) {
      m->blocks[0]->as<Block>()->in->weight.set_requires_grad(!frozen);
      for (const auto& param : m->blocks[1]->parameters()) {
        param.set_requires_grad(!frozen);
      }
      m->first->weight.set_requires_grad(!frozen);
    };
    freeze(plain, true);
    freeze(model, true);
    testing::shard_stack(model, world);
    const auto loss = [&](int step) {
      return [this, step](Stack& m, int rank) {
        return loss_of(m, batch_of(rank, size(), step));
      };
    };
    const auto before = full_parameters(*model);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        freeze(plain, false);
        freeze(model, false);
      }
      expect_mean_grads(world, model, plain, loss(step));
      testing::sgd_step(*model);
      testing::sgd_step(*plain);
      model->zero_grad();
      plain->zero_grad();
      if (step == 1) {
        // Blocks 0 and 2 and the root.
        EXPECT_EQ(runtime_counters(*model).num_reductions, 2 * 3);
        const auto after = full_parameters(*model);
        for (std::size_t i = 0; i < after.size(); ++i) {
          const auto& name = after[i].first;
          const bool frozen = name == "blocks.0.in.weight" ||
                              name.starts_with("blocks.1.") ||
                              name == "first.weight";
          EXPECT_EQ(at::equal(after[i].second, before[i].second), frozen)
              << name;
        }
      }
    }
    testing::expect_params_of(*model, *plain);
    freeze(plain, true);
    freeze(model, true);
    expect_mean_grads(world, model, plain, loss(4));
  });
}

/// Frozen base, trainable adapter behind it: the unit's gradients are complete
/// while the base's backward still needs its weights.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl()
      : base(register_module(
            "base", torch::nn::Linear(testing::kWidth, testing::kWidth))),
        down(register_module("down", torch::nn::Linear(testing::kWidth, 2))),
        up(register_module("up", torch::nn::Linear(2, testing::kWidth))) {
    for (const auto& param : base->parameters()) {
      param.set_requires_grad(false);
    }
  }
  Tensor forward(const Tensor& x) {
    const auto y = base(x);
    return y + up(down(y));
  }
  torch::nn::Linear base;
  torch::nn::Linear down;
  torch::nn::Linear up;
};
FSDP_MODULE(Adapted);

/// Uses its weight once as a constant, before the use that has a gradient.
struct DetachedImpl : torch::nn::Module {
  DetachedImpl()
      : weight(register_parameter(
            "weight", at::ones({testing::kWidth, testing::kWidth}))) {}
  Tensor forward(const Tensor& x) {
    return at::linear(at::tanh(at::linear(x, weight.detach())), weight);
  }
  Tensor weight;
};
FSDP_MODULE(Detached);

struct LoraStackImpl : torch::nn::Module {
  LoraStackImpl()
      : first(register_module(
            "first", HookedHolder<torch::nn::LinearImpl>(3, testing::kWidth))),
        layers(register_module(
            "layers",
            torch::nn::Sequential(Adapted(), Detached(), Adapted()))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return layers->forward(first(x)); }
  HookedHolder<torch::nn::LinearImpl> first;
  torch::nn::Sequential layers;
};
FSDP_MODULE(LoraStack);

TEST_P(PartialGradients, MayBeCompleteBeforeTheUnitsBackwardIs) {
  for (const bool reshard_after_forward : {true, false}) {
    run([&](const ProcessGroup& world) {
      LoraStack plain;
      LoraStack model;
      const FullyShardOptions options{
          .mesh = shard_mesh(world),
          .reshard_after_forward = reshard_after_forward};
      fully_shard(model->first, options);
      for (const auto& layer : *model->layers) {
        fully_shard(layer.ptr(), options);
      }
      fully_shard(model, options);
      for (int step = 0; step < 2; ++step) {
        expect_mean_grads(world, model, plain, [&](LoraStack& m, int rank) {
          return m(batch_of(rank, size(), step).x).square().mean();
        });
      }
    });
  }
}

struct IgnoresLiveInputImpl : torch::nn::Module {
  IgnoresLiveInputImpl() : fc(register_module("fc", torch::nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& frozen_in, const Tensor&) {
    return fc(frozen_in);
  }
  torch::nn::Linear fc;
};
FSDP_MODULE(IgnoresLiveInput);

struct FrozenBranchImpl : torch::nn::Module {
  FrozenBranchImpl()
      : live(register_module("live", torch::nn::Linear(4, 4))),
        frozen(register_module("frozen", IgnoresLiveInput())),
        head(register_module(
            "head", HookedHolder<torch::nn::LinearImpl>(4, 2))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
    for (const auto& param : frozen->parameters()) {
      param.set_requires_grad(false);
    }
  }
  Tensor forward(const Tensor& x) { return head(frozen(x, live(x))); }
  torch::nn::Linear live;
  IgnoresLiveInput frozen;
  HookedHolder<torch::nn::LinearImpl> head;
};
FSDP_MODULE(FrozenBranch);

// B58.
TEST_P(PartialGradients, OfAFrozenUnitWithAnUnusedLiveInput) {
  run([this](const ProcessGroup& world) {
    FrozenBranch plain;
    FrozenBranch model;
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    fully_shard(model->frozen, options);
    fully_shard(model->head, options);
    fully_shard(model, options);
    const auto before = model->frozen->fc->weight.detach().clone();
    for (int step = 0; step < 3; ++step) {
      expect_mean_grads(world, model, plain, [&](FrozenBranch& m, int rank) {
        const auto x = batch_of(rank, size(), step).x;
        return m(at::cat({x, x.narrow(1, 0, 1)}, 1)).square().mean();
      });
      testing::sgd_step(*model);
      testing::sgd_step(*plain);
      model->zero_grad();
      plain->zero_grad();
      EXPECT_TRUE(at::equal(model->frozen->fc->weight, before));
      EXPECT_FALSE(model->frozen->fc->weight.grad().defined());
    }
    testing::expect_params_of(*model, *plain);
  });
}

struct CachesImpl : torch::nn::Module {
  CachesImpl()
      : l1(register_parameter("l1", at::ones({4, 4}))),
        l2(register_parameter("l2", at::ones({4, 4}))) {}
  Tensor forward(const Tensor& x) {
    cached = at::linear(x, l1);
    return at::linear(cached, l2);
  }
  Tensor l1;
  Tensor l2;
  Tensor cached;
};
FSDP_MODULE(Caches);

// B06.
TEST_P(PartialGradients, ReachAUnitWhoseOutputTheLossDoesNotUse) {
  run([this](const ProcessGroup& world) {
    Caches model;
    fully_shard(
        model, {.mesh = shard_mesh(world), .reshard_after_forward = true});
    for (int step = 0; step < 2; ++step) {
      model(at::full({1, 4}, world.rank() + 1.0));
      model->cached.sum().backward();
      EXPECT_EQ(testing::is_full(*model, "l1"), size() == 1);
      ASSERT_TRUE(model->l1.grad().defined());
      const double mean = (size() + 1) / 2.0;
      EXPECT_TRUE(at::equal(model->l1.grad(), at::full_like(model->l1, mean)));
      EXPECT_FALSE(model->l2.grad().defined());
      model->zero_grad();
    }
  });
}

struct TwoOutputsImpl : torch::nn::Module {
  TwoOutputsImpl()
      : a(register_module("a", torch::nn::Linear(3, 4))),
        b(register_module("b", torch::nn::Linear(3, 4))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& x) {
    return {a(x), {b(x)}};
  }
  torch::nn::Linear a;
  torch::nn::Linear b;
};
FSDP_MODULE(TwoOutputs);

TEST_P(PartialGradients, FollowFromOneOfSeveralOutputs) {
  for (const bool second : {false, true}) {
    run([&](const ProcessGroup& world) {
      TwoOutputs plain;
      TwoOutputs model;
      fully_shard(
          model, {.mesh = shard_mesh(world), .reshard_after_forward = true});
      expect_mean_grads(world, model, plain, [&](TwoOutputs& m, int rank) {
        const auto [a, b] = m(batch_of(rank, size()).x);
        return second ? b[0].square().sum() : a.square().sum();
      });
    });
  }
}

TEST_P(PartialGradients, ReachTheInputsOfFrozenAndTrainableUnits) {
  for (const bool frozen : {false, true}) {
    run([&](const ProcessGroup& world) {
      Stack plain;
      Stack model;
      for (Stack& m : std::vector{plain, model}) {
        for (const auto& param : m->parameters()) {
          param.set_requires_grad(!frozen);
        }
      }
      testing::shard_stack(model, world);
      for (int step = 0; step < 2; ++step) {
        const auto batch = batch_of(world.rank(), size(), step);
        const auto input_grad = [&](Stack& m) {
          Tensor x = batch.x.clone().set_requires_grad(true);
          loss_of(m, {x, batch.y}).backward();
          return x.grad();
        };
        EXPECT_TRUE(
            at::allclose(input_grad(model), input_grad(plain), 1e-12, 1e-12));
      }
      EXPECT_EQ(runtime_counters(*model).num_reductions, frozen ? 0 : 8);
      // autograd::grad of an input alone leaves no gradient behind.
      model->zero_grad();
      Tensor x = batch_of(world.rank(), size()).x.set_requires_grad(true);
      EXPECT_EQ(
          torch::autograd::grad({model(x).sum()}, {x})[0].sizes(), x.sizes());
      EXPECT_FALSE(model->last->weight.grad().defined());
    });
  }
}

} // namespace
} // namespace fsdp
