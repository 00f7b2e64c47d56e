// Loops that users write: what comes between forward, backward and step, in
// every order, gives what the same program gives in one process.

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/sgd.h>

#include <functional>

#include "fsdp/optim.h"
#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using ::testing::HasSubstr;
using testing::OnRanks;
using testing::Scale;
using testing::shard_mesh;
using testing::Stack;
using testing::whole_batch;
using testing::with_ranks;

class Loops : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    Loops,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

TEST_P(Loops, BackwardTwiceOverARetainedGraph) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 2; ++step) {
      const auto expected = loss_of(plain, whole_batch(step));
      const auto loss = loss_of(model, batch_of(world.rank(), size(), step));
      for (const bool retain : {true, false}) {
        const auto before = runtime_counters(*model);
        expected.backward({}, retain);
        loss.backward({}, retain);
        testing::expect_grads_of(*model, *plain);
        EXPECT_EQ(
            runtime_counters(*model).num_reductions - before.num_reductions, 4);
        EXPECT_EQ(testing::is_full(*model, "last.weight"), size() == 1);
      }
    }
  });
}

TEST_P(Loops, LossesOfEarlierStepsMayLiveOn) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    std::vector<Tensor> kept;
    for (int step = 0; step < 3; ++step) {
      loss_of(plain, whole_batch(step)).backward();
      kept.push_back(loss_of(model, batch_of(world.rank(), size(), step)));
      kept.back().backward();
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
      plain->zero_grad();
      model->zero_grad();
    }
    testing::expect_params_of(*model, *plain);
  });
}

TEST_P(Loops, ZeroGradBetweenForwardAndBackward) {
  for (const bool set_to_none : {true, false}) {
    run([&](const ProcessGroup& world) {
      Stack plain;
      Stack model;
      testing::shard_stack(model, world);
      for (int step = 0; step < 3; ++step) {
        const auto expected = loss_of(plain, whole_batch(step));
        plain->zero_grad(set_to_none);
        expected.backward();
        const auto loss = loss_of(model, batch_of(world.rank(), size(), step));
        model->zero_grad(set_to_none);
        loss.backward();
        testing::expect_grads_of(*model, *plain);
      }
    });
  }
}

TEST_P(Loops, GradientsZeroedInPlace) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 3; ++step) {
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
      plain->zero_grad(/*set_to_none=*/false);
      model->zero_grad(/*set_to_none=*/false);
    }
    testing::expect_params_of(*model, *plain);
  });
}

// B12.
TEST(Optimizers, MayBeBuiltBeforeShardingOrAfterAForward) {
  enum Order { kBeforeSharding, kAfterEval, kAfterForward };
  for (const auto& [backend, size] : testing::two_engines(2)) {
    for (const Order order : {kBeforeSharding, kAfterEval, kAfterForward}) {
      for (const bool of_libtorch : {false, true}) {
        with_ranks(
            size,
            [&](const ProcessGroup& world) {
              Scale model(at::ones({8}));
              std::function<void()> step;
              const auto build = [&] {
                if (of_libtorch) {
                  auto sgd = std::make_shared<torch::optim::SGD>(
                      model->parameters(), 0.1);
                  step = [sgd] { sgd->step(); };
                } else {
                  auto sgd = std::make_shared<SGD>(
                      model->parameters(), SGDOptions{.lr = 0.1});
                  step = [sgd] { sgd->step(); };
                }
              };
              if (order == kBeforeSharding) {
                build();
              }
              fully_shard(model, {.mesh = shard_mesh(world)});
              if (order == kAfterEval) {
                c10::AutoGradMode grad_off(false);
                model(at::ones({8}));
                build();
              }
              const auto loss = model(at::ones({8})).sum();
              if (order == kAfterForward) {
                build();
              }
              loss.backward();
              step();
              EXPECT_TRUE(at::allclose(
                  full_parameters(*model)[0].second, at::full({8}, 0.9)))
                  << order << of_libtorch;
            },
            backend);
      }
    }
  }
}

TEST_P(Loops, UnshardAndReshardByHand) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    const auto block = model->blocks[1]->as<testing::Block>();
    const auto& weight = block->in->weight;
    const auto& expected = plain->blocks[1]->as<testing::Block>()->in->weight;
    for (int step = 0; step < 2; ++step) {
      // Before any forward too; of this unit only.
      unshard(*block);
      EXPECT_TRUE(at::allclose(weight, expected, 1e-12, 1e-12));
      EXPECT_EQ(weight.sizes(), expected.sizes());
      EXPECT_EQ(testing::is_full(*model, "last.weight"), size() == 1);
      unshard(*block);
      if (step == 0) {
        reshard(*block);
        EXPECT_EQ(weight.sizes() == expected.sizes(), size() == 1);
        reshard(*block);
      }
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      EXPECT_EQ(weight.sizes() == expected.sizes(), size() == 1);
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
      plain->zero_grad();
      model->zero_grad();
    }
    // Released between forward and backward, which gathers again.
    loss_of(plain, whole_batch(2)).backward();
    const auto loss = loss_of(model, batch_of(world.rank(), size(), 2));
    reshard(*model);
    loss.backward();
    testing::expect_grads_of(*model, *plain);
  });
}

TEST_P(Loops, FirstForwardInInferenceMode) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    {
      c10::InferenceMode inference;
      const auto x = batch_of(world.rank(), size()).x;
      EXPECT_TRUE(at::allclose(model(x), plain(x), 1e-12, 1e-12));
      unshard(*model->blocks[0]);
      reshard(*model->blocks[0]);
    }
    for (int step = 0; step < 2; ++step) {
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
    }
  });
}

TEST_P(Loops, SubUnitsCalledAlone) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    const auto x = at::sin(at::arange(12, at::kDouble)).view({2, 6});
    for (int step = 0; step < 2; ++step) {
      const auto call = [&](Stack& m) {
        return m->blocks[1]->as<testing::Block>()->forward(x);
      };
      call(plain).square().sum().backward();
      call(model).square().sum().backward();
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
    }
  });
}

TEST(Loops, ParametersThatOutliveTheModelAreShards) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Tensor weight;
          Tensor loss;
          {
            Scale model(at::arange(4, at::kFloat));
            fully_shard(model, {.mesh = shard_mesh(world)});
            loss = model(at::ones({4})).sum();
            weight = model->weight;
            EXPECT_EQ(weight.numel(), 4);
          }
          EXPECT_TRUE(at::equal(
              weight,
              at::arange(4, at::kFloat).narrow(0, 2 * world.rank(), 2)));
          world.barrier();
        },
        backend);
  }
}

// Programs whose writes must not reach a peer that is still in its forward or
// backward, for which each rank takes its time. The numbers are bit-equal to
// those of one process that goes through the ranks' batches one by one.

enum class Program {
  kStepAtOnce,
  kClampAfterBackward,
  kWriteBetweenForwardAndBackward,
  kSwapAverageAroundEval,
  kSkipBackwardThenWrite,
  kEvalThenWrite,
};

/// Rank r's forward and backward take the longer the larger `work` is.
struct SlowStackImpl : torch::nn::Module {
  SlowStackImpl() : stack(register_module("stack", Stack())) { to(at::kFloat); }
  Tensor forward(const Tensor& x) {
    delay();
    const auto y = stack(x);
    delay();
    if (y.requires_grad()) {
      y.register_hook([amount = work](const Tensor&) { spend(amount); });
    }
    return y;
  }
  void delay() const { spend(work); }
  static void spend(int amount) {
    c10::AutoGradMode grad_off(false);
    const auto square = at::ones({96, 96});
    for (int i = 0; i < amount; ++i) {
      square.mm(square);
    }
  }
  Stack stack;
  int work = 0;
};
FSDP_MODULE(SlowStack);

/// One process or one rank: how the program gets gradients and tells numbers.
struct Runner {
  SlowStack model;
  /// Leaves the mean of all ranks' gradients in .grad; `between` is called
  /// between forward and backward.
  std::function<void(int step, const std::function<void()>& between)> backward;
  std::function<void(int step)> forward_only;
  std::function<void()> release_root = [] {};
};

void write_biases(SlowStack& model) {
  c10::AutoGradMode grad_off(false);
  for (const auto& block : *model->stack->blocks) {
    block->as<testing::Block>()->out->bias.add_(0.0625);
  }
}

void for_each_param(
    SlowStack& model, const std::function<void(const Tensor&)>& write) {
  c10::AutoGradMode grad_off(false);
  for (const auto& param : model->parameters()) {
    write(param);
  }
}

void run_program(Program program, Runner& runner) {
  SlowStack& model = runner.model;
  std::vector<Tensor> average;
  for_each_param(model, [&](const Tensor& param) {
    average.push_back(param.detach().clone());
  });
  const auto swap = [&] {
    std::size_t i = 0;
    for_each_param(model, [&](const Tensor& param) {
      const Tensor value = param.clone();
      param.copy_(average[i]);
      average[i++] = value;
    });
  };
  const auto eval = [&](int step) {
    c10::AutoGradMode grad_off(false);
    runner.forward_only(step);
  };
  const std::function<void()> nothing = [] {};
  for (int step = 0; step < 3; ++step) {
    if (program == Program::kSkipBackwardThenWrite) {
      runner.forward_only(step);
      runner.release_root();
      for_each_param(model, [](const Tensor& param) { param.mul_(0.75); });
    }
    runner.backward(
        step,
        program == Program::kWriteBetweenForwardAndBackward
            ? [&] { write_biases(model); }
            : nothing);
    if (program == Program::kClampAfterBackward) {
      for_each_param(
          model, [](const Tensor& param) { param.clamp_(-0.25, 0.25); });
    }
    testing::sgd_step(*model, 0.125);
    model->zero_grad();
    if (program == Program::kSwapAverageAroundEval) {
      swap();
      eval(step);
      swap();
      std::size_t i = 0;
      for_each_param(model, [&](const Tensor& param) {
        average[i].add_(param).mul_(0.5);
        ++i;
      });
    }
    if (program == Program::kEvalThenWrite) {
      eval(step);
      for_each_param(model, [](const Tensor& param) { param.mul_(0.75); });
    }
  }
}

testing::Batch float_batch(int rank, int size, int step) {
  const auto batch = batch_of(rank, size, step);
  return {batch.x.to(at::kFloat), batch.y.to(at::kFloat)};
}

Tensor slow_loss(SlowStack& model, const testing::Batch& batch) {
  return at::mse_loss(model(batch.x), batch.y);
}

/// Final parameters, and by rank the numbers seen on the way.
struct Outcome {
  std::vector<Tensor> params;
  std::vector<std::vector<float>> seen;
};

Outcome in_one_process(Program program, int size) {
  Outcome outcome;
  outcome.seen.resize(static_cast<std::size_t>(size));
  Runner runner;
  SlowStack& model = runner.model;
  runner.backward = [&](int step, const std::function<void()>& between) {
    std::vector<Tensor> losses;
    std::vector<Tensor> sums;
    for (int rank = 0; rank < size; ++rank) {
      losses.push_back(slow_loss(model, float_batch(rank, size, step)));
    }
    between();
    for (int rank = 0; rank < size; ++rank) {
      auto& loss = losses[static_cast<std::size_t>(rank)];
      outcome.seen[static_cast<std::size_t>(rank)].push_back(
          loss.item<float>());
      loss.backward();
      std::size_t i = 0;
      for (const auto& param : model->parameters()) {
        const Tensor grad = param.grad();
        param.mutable_grad().reset();
        if (rank == 0) {
          sums.push_back(grad);
        } else {
          sums[i] = sums[i] + grad;
        }
        ++i;
      }
    }
    std::size_t i = 0;
    for (const auto& param : model->parameters()) {
      param.mutable_grad() = sums[i++] / size;
    }
  };
  runner.forward_only = [&](int step) {
    for (int rank = 0; rank < size; ++rank) {
      outcome.seen[static_cast<std::size_t>(rank)].push_back(
          slow_loss(model, float_batch(rank, size, step)).item<float>());
    }
  };
  run_program(program, runner);
  for (const auto& param : model->parameters()) {
    outcome.params.push_back(param.detach());
  }
  return outcome;
}

void compare_on_rank(
    Program program,
    const ProcessGroup& world,
    const Outcome& expected,
    bool last_is_slow) {
  const int rank = world.rank();
  const int size = world.size();
  std::vector<float> seen;
  Runner runner;
  SlowStack& model = runner.model;
  model->work = 40 * (last_is_slow ? rank : size - 1 - rank);
  const FullyShardOptions options{.mesh = shard_mesh(world)};
  testing::shard_stack(model->stack, options);
  fully_shard(model, options);
  runner.backward = [&](int step, const std::function<void()>& between) {
    const auto loss = slow_loss(model, float_batch(rank, size, step));
    between();
    seen.push_back(loss.item<float>());
    loss.backward();
  };
  runner.forward_only = [&](int step) {
    seen.push_back(
        slow_loss(model, float_batch(rank, size, step)).item<float>());
  };
  runner.release_root = [&] { reshard(*model); };
  run_program(program, runner);
  EXPECT_EQ(seen, expected.seen[static_cast<std::size_t>(rank)]);
  const auto params = full_parameters(*model);
  for (std::size_t i = 0; i < params.size(); ++i) {
    EXPECT_TRUE(at::equal(params[i].second, expected.params[i]))
        << params[i].first;
  }
}

class WritesOfTheUser : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    WritesOfTheUser,
    ::testing::Values(
        std::tuple{"inproc", 2},
        std::tuple{"inproc", 4},
        std::tuple{"gloo", 2}),
    testing::name_of_ranks);

TEST_P(WritesOfTheUser, NeverReachAPeersForwardOrBackward) {
  for (const auto program :
       {Program::kStepAtOnce,
        Program::kClampAfterBackward,
        Program::kWriteBetweenForwardAndBackward,
        Program::kSwapAverageAroundEval,
        Program::kSkipBackwardThenWrite,
        Program::kEvalThenWrite}) {
    SCOPED_TRACE(static_cast<int>(program));
    const auto expected = in_one_process(program, size());
    for (const bool last_is_slow : {true, false}) {
      run([&](const ProcessGroup& world) {
        compare_on_rank(program, world, expected, last_is_slow);
      });
    }
  }
}

TEST_P(WritesOfTheUser, ToWeightsThatTheBackwardNeedsAreNoticedAsInOneProcess) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    const auto write_between = [](Stack& m, const testing::Batch& batch) {
      const auto loss = loss_of(m, batch);
      {
        c10::AutoGradMode grad_off(false);
        m->blocks[0]->as<testing::Block>()->out->weight.mul_(2);
      }
      return testing::thrown_text<c10::Error>([&] { loss.backward(); });
    };
    EXPECT_THAT(
        write_between(plain, whole_batch()),
        HasSubstr("modified by an inplace operation"));
    EXPECT_THAT(
        write_between(model, batch_of(world.rank(), size())),
        HasSubstr("modified by an inplace operation"));
    plain->zero_grad();
    model->zero_grad();
    loss_of(plain, whole_batch()).backward();
    loss_of(model, batch_of(world.rank(), size())).backward();
    testing::expect_grads_of(*model, *plain);
  });
}

} // namespace
} // namespace fsdp
