// What every rank gets to see when one of them fails or goes its own way, and
// that all can go on afterwards. Ranks are threads.

#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <functional>
#include <limits>

#include "fsdp/clip_grad.h"
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
using ::testing::StartsWith;
using testing::thrown_text;
using testing::whole_batch;
using testing::with_ranks;

using Callback = std::function<void()>;

/// The identity, with a call in its backward.
struct CallInBackward : torch::autograd::Function<CallInBackward> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      const Callback* callback) {
    context->saved_data["callback"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(callback));
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const auto* callback = reinterpret_cast<const Callback*>(
        static_cast<std::intptr_t>(context->saved_data["callback"].toInt()));
    (*callback)();
    return {grads[0], Tensor()};
  }
};

/// A block with calls in the middle of its forward and of its backward.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl()
      : in(register_module(
            "in", torch::nn::Linear(testing::kWidth, testing::kWidth))),
        out(register_module(
            "out", torch::nn::Linear(testing::kWidth, testing::kWidth))) {}
  Tensor forward(const Tensor& x) {
    const auto hidden = at::tanh(in(x));
    in_forward();
    return x + out(CallInBackward::apply(hidden, &in_backward));
  }
  torch::nn::Linear in;
  torch::nn::Linear out;
  Callback in_forward = [] {};
  Callback in_backward = [] {};
};
FSDP_MODULE(Probe);

/// Units `blocks.0` to `blocks.2` and the root.
struct ProbesImpl : torch::nn::Module {
  ProbesImpl()
      : first(register_module("first", torch::nn::Linear(3, testing::kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        last(register_module("last", torch::nn::Linear(testing::kWidth, 2))) {
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(Probe());
    }
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) {
    before_blocks();
    auto hidden = first(x);
    for (const int i : order) {
      hidden = block(i).forward(hidden);
    }
    after_blocks();
    return CallInBackward::apply(last(hidden), &in_backward);
  }
  Probe::Impl& block(int i) {
    return *blocks[static_cast<std::size_t>(i)]->as<Probe>();
  }
  torch::nn::Linear first;
  torch::nn::ModuleList blocks;
  torch::nn::Linear last;
  std::vector<int> order{0, 1, 2};
  Callback before_blocks = [] {};
  Callback after_blocks = [] {};
  Callback in_backward = [] {};
};
FSDP_MODULE(Probes);

void shard(Probes& model, const ProcessGroup& world) {
  const FullyShardOptions options{.mesh = shard_mesh(world)};
  for (const auto& block : *model->blocks) {
    fully_shard(block, options);
  }
  fully_shard(model, options);
}

Tensor probes_loss(Probes& model, const testing::Batch& batch) {
  return at::mse_loss(model(batch.x), batch.y);
}

/// A place where a rank fails, and what the others are told.
struct Place {
  const char* text;
  std::function<Callback*(Probes&)> callback;
};

const std::vector<Place>& places() {
  static const std::vector<Place> all{
      {"in the forward of the root unit",
       [](Probes& m) { return &m->before_blocks; }},
      {"in the forward of unit 'blocks.1'",
       [](Probes& m) { return &m->block(1).in_forward; }},
      {"in the forward of the root unit",
       [](Probes& m) { return &m->after_blocks; }},
      {"in the backward of the root unit",
       [](Probes& m) { return &m->in_backward; }},
      {"in the backward of unit 'blocks.2'",
       [](Probes& m) { return &m->block(2).in_backward; }},
      {"in the backward of unit 'blocks.0'",
       [](Probes& m) { return &m->block(0).in_backward; }}};
  return all;
}

[[noreturn]] void fail_with_a_bad_batch() {
  throw std::out_of_range("bad batch");
}

/// Two steps of `model` as of `plain`, from zero gradients.
void expect_good_steps(
    const ProcessGroup& world, Probes& model, Probes& plain) {
  model->zero_grad();
  plain->zero_grad();
  for (int step = 0; step < 2; ++step) {
    probes_loss(plain, whole_batch(step)).backward();
    probes_loss(model, batch_of(world.rank(), world.size(), step)).backward();
    testing::expect_grads_of(*model, *plain);
    testing::sgd_step(*model);
    testing::sgd_step(*plain);
    model->zero_grad();
    plain->zero_grad();
  }
  testing::expect_params_of(*model, *plain);
}

/// In one step `failing` throws at `place`; every rank gets its exception.
void fail_once(
    const ProcessGroup& world, Probes& model, const Place& place, int failing) {
  const auto start = std::chrono::steady_clock::now();
  const auto step = [&] {
    probes_loss(model, batch_of(world.rank(), world.size())).backward();
  };
  if (world.rank() == failing) {
    Callback* callback = place.callback(model);
    *callback = fail_with_a_bad_batch;
    EXPECT_EQ(thrown_text<std::out_of_range>(step), "bad batch");
    *callback = [] {};
  } else {
    EXPECT_EQ(
        thrown_text<PeerError>(step),
        "[rank " + std::to_string(world.rank()) + "] rank " +
            std::to_string(failing) + " failed: " + place.text + ": bad batch");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  for (const auto& info : shard_infos(*model)) {
    EXPECT_EQ(model->named_parameters()[info.name].size(0), info.num_rows)
        << info.name;
  }
}

class Failures : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    Failures,
    ::testing::Values(
        std::tuple{"inproc", 2},
        std::tuple{"inproc", 3},
        std::tuple{"inproc", 4},
        std::tuple{"inproc", 8},
        std::tuple{"gloo", 2},
        std::tuple{"gloo", 4}),
    testing::name_of_ranks);

TEST_P(Failures, OfOneRankAreThrownOnEveryRankAndAllGoOn) {
  run([this](const ProcessGroup& world) {
    Probes plain;
    Probes model;
    shard(model, world);
    int failing = 0;
    for (const auto& place : places()) {
      SCOPED_TRACE(place.text);
      fail_once(world, model, place, failing);
      expect_good_steps(world, model, plain);
      failing = (failing + size() - 1) % size();
    }
  });
}

TEST_P(Failures, MayFollowEachOtherWithoutAGoodStep) {
  run([this](const ProcessGroup& world) {
    Probes plain;
    Probes model;
    shard(model, world);
    for (int round = 0; round < 20; ++round) {
      const auto& place = places()[static_cast<std::size_t>(round) % 6];
      SCOPED_TRACE(place.text);
      fail_once(world, model, place, round % size());
    }
    expect_good_steps(world, model, plain);
  });
}

TEST_P(Failures, LeaveTheGradientsOfEarlierBackwardsOnly) {
  for (const std::size_t where : {4u, 5u}) {
    run([&](const ProcessGroup& world) {
      Probes plain;
      Probes model;
      shard(model, world);
      probes_loss(plain, whole_batch()).backward();
      probes_loss(model, batch_of(world.rank(), size())).backward();
      fail_once(world, model, places()[where], size() - 1);
      testing::expect_grads_of(*model, *plain);
      probes_loss(plain, whole_batch(1)).backward();
      probes_loss(model, batch_of(world.rank(), size(), 1)).backward();
      testing::expect_grads_of(*model, *plain);

      // Gradients kept unreduced are lost with the step.
      set_requires_gradient_sync(*model, false);
      probes_loss(model, batch_of(world.rank(), size(), 2)).backward();
      set_requires_gradient_sync(*model, true);
      fail_once(world, model, places()[where], 0);
      expect_good_steps(world, model, plain);
    });
  }
}

TEST_P(Failures, OfTheLossAreNotBlamedOnAUnit) {
  run([this](const ProcessGroup& world) {
    Probes plain;
    Probes model;
    shard(model, world);
    const Callback bad = [&] {
      if (world.rank() == 1) {
        fail_with_a_bad_batch();
      }
    };
    for (int round = 0; round < 2; ++round) {
      const auto loss = CallInBackward::apply(
          probes_loss(model, batch_of(world.rank(), size())), &bad);
      if (world.rank() == 1) {
        EXPECT_EQ(
            thrown_text<std::out_of_range>([&] { loss.backward(); }),
            "bad batch");
      } else {
        EXPECT_THAT(
            thrown_text<PeerError>([&] { loss.backward(); }),
            ::testing::EndsWith(
                "rank 1 failed: in the backward of the loss: bad batch"));
      }
      expect_good_steps(world, model, plain);
    }
  });
}

TEST_P(Failures, InAForwardWithoutGradReachTheOthersAtTheirNextMeeting) {
  run([this](const ProcessGroup& world) {
    Probes plain;
    Probes model;
    shard(model, world);
    const auto eval = [&] {
      c10::AutoGradMode grad_off(false);
      model(batch_of(world.rank(), size()).x);
    };
    if (world.rank() == 0) {
      model->block(1).in_forward = fail_with_a_bad_batch;
      EXPECT_EQ(thrown_text<std::out_of_range>(eval), "bad batch");
      model->block(1).in_forward = [] {};
    } else {
      EXPECT_THAT(
          thrown_text<PeerError>([&] {
            eval();
            eval();
          }),
          HasSubstr("in the forward of unit 'blocks.1': bad batch"));
    }
    expect_good_steps(world, model, plain);
  });
}

// B70.
TEST(Failures, OnBothRanksAreCaughtAndTrainingGoesOn) {
  struct RootImpl : torch::nn::Module {
    RootImpl() : scale(register_module("scale", Scale(at::ones({4})))) {}
    Tensor forward(const Tensor& x, int throw_at) {
      if (throw_at == 1) {
        fail_with_a_bad_batch();
      }
      const auto y = scale(x);
      if (throw_at == 2) {
        fail_with_a_bad_batch();
      }
      return y;
    }
    Scale scale;
  };
  FSDP_MODULE(Root);
  for (const auto& [backend, size] : testing::two_engines(2)) {
    for (const bool one_rank_only : {false, true}) {
      with_ranks(
          size,
          [&](const ProcessGroup& world) {
            Root model;
            fully_shard(model->scale, {.mesh = shard_mesh(world)});
            fully_shard(model, {.mesh = shard_mesh(world)});
            SGD optimizer(model->parameters(), {.lr = 0.1});
            const bool throws = !one_rank_only || world.rank() == 1;
            for (const int throw_at : {1, 2}) {
              const auto step = [&] {
                model(at::ones({4}), throws ? throw_at : 0).sum().backward();
              };
              if (throws) {
                EXPECT_EQ(thrown_text<std::out_of_range>(step), "bad batch");
              } else {
                EXPECT_EQ(
                    thrown_text<PeerError>(step),
                    "[rank 0] rank 1 failed: in the forward of the root unit: "
                    "bad batch");
              }
              EXPECT_EQ(model->scale->weight.numel(), 2);
              optimizer.zero_grad();
            }
            for (int step = 0; step < 2; ++step) {
              model(at::ones({4}), 0).sum().backward();
              optimizer.step();
              optimizer.zero_grad();
            }
            EXPECT_TRUE(at::allclose(model->scale->weight, at::full({2}, 0.8)));
          },
          backend);
    }
  }
}

TEST(Failures, CaughtInsideTheForwardOfAnOuterUnitAreStillErrors) {
  with_ranks(2, [](const ProcessGroup& world) {
    struct CatchesImpl : torch::nn::Module {
      CatchesImpl() : probe(register_module("probe", Probe())) {
        testing::fill_distinct(*this);
        to(at::kDouble);
      }
      Tensor forward(const Tensor& x) {
        try {
          return probe(x);
        } catch (const std::out_of_range&) {
          return x;
        }
      }
      Probe probe;
    };
    FSDP_MODULE(Catches);
    Catches plain;
    Catches model;
    fully_shard(model->probe, {.mesh = shard_mesh(world)});
    fully_shard(model, {.mesh = shard_mesh(world)});
    const auto x = at::ones({2, testing::kWidth}, at::kDouble);
    model->probe->in_forward = fail_with_a_bad_batch;
    EXPECT_EQ(
        thrown_text<UsageError>([&] { model(x); }),
        "[rank " + std::to_string(world.rank()) +
            "] an exception was caught inside the forward of the root unit, "
            "where a unit had failed: let it pass, and catch it outside");
    model->probe->in_forward = [] {};
    const auto before = runtime_counters(*model);
    for (int step = 0; step < 2; ++step) {
      plain(x).square().sum().backward();
      model(x).square().sum().backward();
      testing::expect_grads_of(*model, *plain);
    }
    EXPECT_EQ(
        runtime_counters(*model).num_reductions - before.num_reductions, 2);
  });
}

/// What rank 0 and rank 1 asked for when they met.
std::string mismatch_text(
    const ProcessGroup& world,
    const std::string& of_rank_0,
    const std::string& of_rank_1) {
  return "[rank " + std::to_string(world.rank()) +
         "] ranks met with different requests: rank 0 asks for " + of_rank_0 +
         ", rank 1 for " + of_rank_1 +
         "; every rank must issue the same calls in the same order";
}

using Asked = std::pair<std::string, std::string>; ///< by rank 0 and rank 1

/// Both ranks run `body`, which throws a MismatchError; over inproc with one of
/// several texts, by how far rank 0 came. Then both go on.
void expect_mismatch(
    const std::function<void(const ProcessGroup&, Probes&)>& body,
    const std::vector<Asked>& over_inproc,
    const Asked& over_gloo) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    SCOPED_TRACE(backend);
    const auto all_asked =
        backend == "inproc" ? over_inproc : std::vector{over_gloo};
    with_ranks(
        size,
        [&](const ProcessGroup& world) {
          Probes plain;
          Probes model;
          shard(model, world);
          expect_good_steps(world, model, plain);
          std::vector<std::string> texts;
          for (const auto& [first, second] : all_asked) {
            texts.push_back(mismatch_text(world, first, second));
          }
          const auto start = std::chrono::steady_clock::now();
          EXPECT_THAT(
              thrown_text<MismatchError>([&] { body(world, model); }),
              ::testing::AnyOfArray(texts));
          EXPECT_LT(
              std::chrono::steady_clock::now() - start,
              std::chrono::seconds(5));
          model->order = {0, 1, 2};
          expect_good_steps(world, model, plain);
        },
        backend);
  }
}

// B20.
TEST(Mismatches, OfTheOrderOfUnitsAreNamed) {
  expect_mismatch(
      [](const ProcessGroup& world, Probes& model) {
        if (world.rank() == 1) {
          model->order = {0, 2, 1};
        }
        probes_loss(model, batch_of(world.rank(), 2)).backward();
      },
      {{"gradients(avg, float64, 84 elements) for unit 'blocks.2'",
        "gradients(avg, float64, 84 elements) for unit 'blocks.1'"}},
      {"all_gather(uint8, 672 elements) for unit 'blocks.2'",
       "all_gather(uint8, 672 elements) for unit 'blocks.1'"});
}

TEST(Mismatches, OfTheGradModeAreNamed) {
  const Asked asked{
      "forward(with grad) for 'the root unit'",
      "forward(without grad) for 'the root unit'"};
  expect_mismatch(
      [](const ProcessGroup& world, Probes& model) {
        c10::AutoGradMode mode(world.rank() == 0);
        model(batch_of(world.rank(), 2).x);
      },
      {asked},
      asked);
}

TEST(Mismatches, OfTheUnitThatIsCalledAreNamed) {
  const Asked asked{
      "unshard for unit 'blocks.0'", "unshard for unit 'blocks.1'"};
  expect_mismatch(
      [](const ProcessGroup& world, Probes& model) {
        unshard(model->block(world.rank()));
      },
      {asked},
      asked);
}

TEST(Mismatches, OfAnExtraForwardAreNamed) {
  expect_mismatch(
      [](const ProcessGroup& world, Probes& model) {
        const auto batch = batch_of(world.rank(), 2);
        const auto loss = probes_loss(model, batch);
        if (world.rank() == 1) {
          model(batch.x);
        }
        loss.backward();
      },
      {{"gradients(avg, float64, 84 elements) for unit 'blocks.2'",
        "forward(with grad) for 'the root unit'"},
       {"gradients(avg, float64, 84 elements) for unit 'blocks.1'",
        "forward(with grad) for 'the root unit'"}},
      {"all_gather(uint8, 672 elements) for unit 'blocks.2'",
       "forward(with grad) for 'the root unit'"});
}

TEST(Mismatches, OfASkippedBackwardAreNamed) {
  expect_mismatch(
      [](const ProcessGroup& world, Probes& model) {
        for (int step = 0; step < 2; ++step) {
          const auto loss = probes_loss(model, batch_of(world.rank(), 2));
          if (world.rank() == 1) {
            reshard(*model);
            testing::sgd_step(*model);
          } else {
            loss.backward();
          }
        }
      },
      {{"gradients(avg, float64, 84 elements) for unit 'blocks.2'",
        "forward(with grad) for 'the root unit'"},
       {"gradients(avg, float64, 84 elements) for unit 'blocks.1'",
        "forward(with grad) for 'the root unit'"}},
      {"all_gather(uint8, 672 elements) for unit 'blocks.2'",
       "forward(with grad) for 'the root unit'"});
}

// B53.
TEST_P(Failures, AreNotSeenInCorrectPrograms) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    const auto train = [&](int first_step) {
      for (int step = first_step; step < first_step + 3; ++step) {
        loss_of(plain, whole_batch(step)).backward();
        loss_of(model, batch_of(world.rank(), size(), step)).backward();
        testing::sgd_step(*model);
        testing::sgd_step(*plain);
        model->zero_grad();
        plain->zero_grad();
      }
    };
    train(0);
    {
      c10::AutoGradMode grad_off(false);
      for (int i = 0; i < 5; ++i) {
        model(batch_of(world.rank(), size(), i).x);
      }
    }
    world.barrier();
    train(3);
    const auto block = model->blocks[1]->as<testing::Block>();
    block->forward(at::ones({1, testing::kWidth}, at::kDouble));
    train(6);
    testing::expect_params_of(*model, *plain);
  });
}

// B74.
TEST(Failures, ANaNOfOneRankIsEverybodysNorm) {
  for (const auto& [backend, size] : testing::two_engines(4)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Scale model(at::ones({8}));
          fully_shard(model, {.mesh = shard_mesh(world)});
          const double x = world.rank() == 3
                               ? std::numeric_limits<double>::quiet_NaN()
                               : 1.0;
          model(at::full({8}, x, at::kFloat)).sum().backward();
          EXPECT_TRUE(std::isnan(clip_grad_norm_(*model, 1.0)));
          EXPECT_THAT(
              thrown_text<Error>(
                  [&] { clip_grad_norm_(*model, 1.0, 2.0, true); }),
              StartsWith(
                  "[rank " + std::to_string(world.rank()) +
                  "] clip_grad_norm_: the gradients' norm is nan"));
          model->zero_grad();
          model(at::ones({8})).sum().backward();
          EXPECT_NEAR(clip_grad_norm_(*model, 1e9), std::sqrt(8.0), 1e-6);
        },
        backend);
  }
}

} // namespace
} // namespace fsdp
