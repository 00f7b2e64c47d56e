// When units are gathered, released and reduced, told by the observer and the
// counters, and that the results stay those of the plain module.

#include <c10/core/InferenceMode.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>

#include "fsdp/optim.h"
#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using testing::Block;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::OnRanks;
using testing::Scale;
using testing::shard_mesh;
using testing::Stack;
using testing::whole_batch;
using testing::with_ranks;

/// The events of a module's units: "gather 0", "wait 0", "reshard 0", "reduce
/// 0" with the last part of the unit's name.
class EventLog {
 public:
  explicit EventLog(torch::nn::Module& module) : module_(module) {
    set_unit_observer(module, [this](UnitEvent event, const std::string& unit) {
      static const char* const kNames[] = {
          "gather", "reshard", "reduce", "wait"};
      const auto name = unit.substr(unit.rfind('.') + 1);
      events_.push_back(
          std::string(kNames[static_cast<int>(event)]) + " " +
          (name.empty() ? "root" : name));
    });
  }
  ~EventLog() { set_unit_observer(module_, nullptr); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  std::vector<std::string> take() { return std::exchange(events_, {}); }

 private:
  torch::nn::Module& module_;
  std::vector<std::string> events_;
};

std::vector<std::string> only(
    const std::string& kind, const std::vector<std::string>& events) {
  std::vector<std::string> found;
  for (const auto& event : events) {
    if (event.starts_with(kind + " ")) {
      found.push_back(event.substr(kind.size() + 1));
    }
  }
  return found;
}

/// The most units that were gathered or being gathered at once, without `kept`.
int most_gathered(
    const std::vector<std::string>& events, const std::string& kept = "root") {
  int now = 0;
  int most = 0;
  for (const auto& event : events) {
    now += event.starts_with("gather ") && event != "gather " + kept;
    now -= event.starts_with("reshard ") && event != "reshard " + kept;
    most = std::max(most, now);
  }
  return most;
}

/// Units 0, 1, ..., then a Linear of the root; the input has no gradient.
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int num_blocks, bool with_last = true)
      : blocks(register_module("blocks", torch::nn::ModuleList())),
        with_last_(with_last) {
    for (int i = 0; i < num_blocks; ++i) {
      blocks->push_back(Block());
    }
    last = register_module("last", torch::nn::Linear(testing::kWidth, 2));
    testing::fill_distinct(*this);
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x);
    }
    return with_last_ ? last(x) : x;
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear last{nullptr};

 private:
  bool with_last_;
};
FSDP_MODULE(Chain);

void shard_chain(Chain& model, const FullyShardOptions& options) {
  for (const auto& block : *model->blocks) {
    fully_shard(block, options);
  }
  fully_shard(model, options);
}

Tensor chain_input() {
  return at::sin(at::arange(2 * testing::kWidth, at::kFloat))
      .view({2, testing::kWidth});
}

struct Trace {
  std::optional<bool> reshard_after_forward;
  std::vector<std::string> forward; ///< the first
  std::vector<std::string> backward;
  std::vector<std::string> next_forward; ///< with prefetch
};

std::vector<Trace> traces() {
  const std::vector<std::string> backward_of_blocks{
      "wait 1", "gather 0", "wait 0", "reshard 1", "reduce 1"};
  const auto joined = [&](std::vector<std::string> begin,
                          const std::vector<std::string>& end) {
    begin.insert(
        begin.end(), backward_of_blocks.begin(), backward_of_blocks.end());
    begin.insert(begin.end(), end.begin(), end.end());
    return begin;
  };
  const std::vector<std::string> end{
      "reduce 0", "reduce root", "reshard root", "reshard 0"};
  const std::vector<std::string> forward{
      "gather root",
      "wait root",
      "gather 0",
      "wait 0",
      "reshard 0",
      "gather 1",
      "wait 1",
      "reshard 1"};
  const std::vector<std::string> next{
      "gather root",
      "wait root",
      "gather 0",
      "wait 0",
      "gather 1",
      "reshard 0",
      "wait 1",
      "reshard 1"};
  auto forward_of_true = forward;
  auto next_of_true = next;
  forward_of_true.push_back("reshard root");
  next_of_true.push_back("reshard root");
  return {
      {std::nullopt, forward, joined({"gather 1"}, end), next},
      {true,
       forward_of_true,
       joined({"gather root", "wait root", "gather 1"}, end),
       next_of_true},
      {false,
       {"gather root", "wait root", "gather 0", "wait 0", "gather 1", "wait 1"},
       {"reshard 1",
        "reduce 1",
        "reduce 0",
        "reduce root",
        "reshard root",
        "reshard 0"},
       {"gather root",
        "wait root",
        "gather 0",
        "wait 0",
        "gather 1",
        "wait 1"}}};
}

TEST(LifeCycle, EventsComeInTheDocumentedOrder) {
  for (const auto& trace : traces()) {
    for (const auto& [backend, size] : testing::two_engines(2)) {
      with_ranks(
          size,
          [&](const ProcessGroup& world) {
            Chain model(2);
            shard_chain(
                model,
                {.mesh = shard_mesh(world),
                 .reshard_after_forward = trace.reshard_after_forward});
            EventLog log(*model);
            for (int step = 0; step < 2; ++step) {
              const Tensor loss = model(chain_input()).sum();
              EXPECT_THAT(
                  log.take(),
                  ElementsAreArray(step ? trace.next_forward : trace.forward));
              loss.backward();
              EXPECT_THAT(log.take(), ElementsAreArray(trace.backward));
            }
          },
          backend);
    }
  }
}

class LifeCycle : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    LifeCycle,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

TEST_P(LifeCycle, CountsOneGatherPerUseAndOneReductionPerUnit) {
  constexpr int kBlocks = 3;
  struct Case {
    std::optional<bool> reshard_after_forward;
    int backward_gathers;
  };
  for (const auto& [option, backward_gathers] :
       {Case{std::nullopt, kBlocks}, {true, kBlocks + 1}, {false, 0}}) {
    run([&, option = option, gathers = backward_gathers](
            const ProcessGroup& world) {
      Stack plain;
      Stack model;
      testing::shard_stack(
          model, {.mesh = shard_mesh(world), .reshard_after_forward = option});
      for (int step = 0; step < 3; ++step) {
        const auto before = runtime_counters(*model);
        const auto loss = loss_of(model, batch_of(world.rank(), size(), step));
        const auto between = runtime_counters(*model);
        loss.backward();
        const auto after = runtime_counters(*model);
        EXPECT_EQ(between.num_unshards - before.num_unshards, kBlocks + 1);
        EXPECT_EQ(after.num_unshards - between.num_unshards, gathers);
        EXPECT_EQ(between.num_reductions, before.num_reductions);
        EXPECT_EQ(after.num_reductions - before.num_reductions, kBlocks + 1);

        loss_of(plain, whole_batch(step)).backward();
        testing::expect_grads_of(*model, *plain);
        testing::sgd_step(*model);
        testing::sgd_step(*plain);
        plain->zero_grad();
        model->zero_grad();
      }
    });
  }
}

TEST(LifeCycle, TheRootStaysGatheredForTheBackwardOnly) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    const auto x = batch_of(world.rank(), 2).x;
    const auto root_is_full = [&] {
      return testing::is_full(*model, "last.weight");
    };
    const auto block_is_full = [&] {
      return testing::is_full(*model, "blocks.0.in.weight");
    };
    const auto loss = model(x).sum();
    EXPECT_TRUE(root_is_full());
    EXPECT_FALSE(block_is_full());
    loss.backward();
    EXPECT_FALSE(root_is_full());
    {
      c10::AutoGradMode grad_off(false);
      model(x);
      EXPECT_FALSE(root_is_full());
      EXPECT_FALSE(block_is_full());
    }
    {
      c10::InferenceMode inference;
      model(x);
      EXPECT_FALSE(root_is_full());
    }
    // A skipped backward, then a forward without grad.
    model(x);
    EXPECT_TRUE(root_is_full());
    {
      c10::AutoGradMode grad_off(false);
      model(x);
    }
    EXPECT_FALSE(root_is_full());
  });
}

TEST_P(LifeCycle, TwoForwardsOfTheRootShareOneBackward) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 2; ++step) {
      const auto loss = [&](Stack& m, const auto& batch) {
        return loss_of(m, batch(2 * step)) +
               2 * loss_of(m, batch(2 * step + 1));
      };
      const auto own = [&](int s) { return batch_of(world.rank(), size(), s); };
      loss(plain, [](int s) { return whole_batch(s); }).backward();
      const auto before = runtime_counters(*model);
      const auto sum = loss(model, own);
      const auto between = runtime_counters(*model);
      sum.backward();
      const auto after = runtime_counters(*model);
      EXPECT_EQ(between.num_unshards - before.num_unshards, 2 * 3 + 1);
      EXPECT_EQ(after.num_unshards - between.num_unshards, 2 * 3);
      EXPECT_EQ(after.num_reductions - before.num_reductions, 4);
      testing::expect_grads_of(*model, *plain);
    }
  });
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl()
      : block(register_module("block", Block())),
        between(register_module("between", Block())),
        last(register_module("last", torch::nn::Linear(testing::kWidth, 2))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return last(block(between(block(x)))); }
  Block block;
  Block between;
  torch::nn::Linear last;
};
FSDP_MODULE(Twice);

TEST_P(LifeCycle, AUnitUsedTwiceIsGatheredTwiceAndReducedOnce) {
  run([this](const ProcessGroup& world) {
    Twice plain;
    Twice model;
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    fully_shard(model->block, options);
    fully_shard(model->between, options);
    fully_shard(model, options);
    EventLog log(*model);
    const auto count = [](const std::vector<std::string>& events) {
      return std::count(events.begin(), events.end(), "gather block");
    };
    const auto input = [](const testing::Batch& batch) {
      return at::cat({batch.x, batch.x}, 1);
    };
    for (int step = 0; step < 2; ++step) {
      const auto batch = batch_of(world.rank(), size(), step);
      const auto whole = whole_batch(step);
      at::mse_loss(plain(input(whole)), whole.y).backward();
      const auto loss = at::mse_loss(model(input(batch)), batch.y);
      EXPECT_EQ(count(log.take()), 2);
      loss.backward();
      const auto events = log.take();
      EXPECT_EQ(count(events), 2);
      EXPECT_EQ(std::count(events.begin(), events.end(), "reduce block"), 1);
      testing::expect_grads_of(*model, *plain);
    }
  });
}

TEST_P(LifeCycle, AForwardWithoutGradLeavesNothingForTheNextBackward) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 3; ++step) {
      {
        c10::AutoGradMode grad_off(false);
        const auto x = batch_of(world.rank(), size(), step).x;
        const auto y = model(x);
        EXPECT_FALSE(y.requires_grad());
        EXPECT_TRUE(at::allclose(y, plain(x), 1e-12, 1e-12));
      }
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
    }
    EXPECT_EQ(runtime_counters(*model).num_reductions, 3 * 4);
  });
}

// B76.
TEST(LifeCycle, ReshardAfterForwardHoldsForSeveralRootsAndCanBeChanged) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          std::vector<Scale> roots;
          for (int i = 0; i < 3; ++i) {
            roots.emplace_back(at::full({4}, i + 1.0));
            fully_shard(
                roots.back(),
                {.mesh = shard_mesh(world), .reshard_after_forward = true});
          }
          const auto full = [](const Scale& root) {
            return root->weight.numel() == 4;
          };
          const auto gathers = [](const Scale& root) {
            return runtime_counters(*root).num_unshards;
          };
          const Tensor x = at::ones({4});
          for (const bool grad : {false, true}) {
            c10::AutoGradMode mode(grad);
            for (const auto& root : roots) {
              EXPECT_TRUE(
                  at::equal(Scale(root)(x), x * root->weight.detach()[0]));
              for (const auto& other : roots) {
                EXPECT_FALSE(full(other));
              }
            }
          }
          c10::AutoGradMode grad_off(false);
          for (auto& root : roots) {
            set_reshard_after_forward(*root, false);
            EXPECT_FALSE(full(root));
            const auto before = gathers(root);
            for (int i = 0; i < 5; ++i) {
              root(x);
              EXPECT_TRUE(full(root));
            }
            EXPECT_EQ(gathers(root), before + 1);
          }
          for (auto& root : roots) {
            set_reshard_after_forward(*root, true);
            EXPECT_TRUE(full(root));
            root(x);
            EXPECT_FALSE(full(root));
          }
        },
        backend);
  }
}

Tensor trained(
    Chain& model,
    int depth,
    EventLog* log,
    std::vector<std::string>* backward) {
  set_prefetch_depth(*model, depth);
  for (int step = 0; step < 3; ++step) {
    const auto loss = model(chain_input()).square().sum();
    if (log) {
      EXPECT_LE(most_gathered(log->take()), std::max(depth, 1) + 1);
    }
    loss.backward();
    if (log) {
      *backward = log->take();
    }
    testing::sgd_step(*model, 0.01);
    model->zero_grad();
  }
  std::vector<Tensor> all;
  for (const auto& [name, value] : full_parameters(*model)) {
    all.push_back(value.flatten());
  }
  return at::cat(all);
}

/// Each gather begins in the backward of the block `depth` before it (0: of its
/// own, just before it is waited for).
void expect_gathers_ahead(
    const std::vector<std::string>& events, int num_blocks, int depth) {
  const auto place = [&](const char* kind, int block) {
    return std::find(
        events.begin(), events.end(), kind + (" " + std::to_string(block)));
  };
  const int ahead = std::max(depth, 1);
  for (int block = num_blocks - 1 - ahead; block >= 0; --block) {
    const auto issued = place("gather", block);
    EXPECT_LT(place("wait", block + ahead), issued) << block;
    EXPECT_LT(issued, place("wait", block + ahead - 1)) << block;
    if (block < num_blocks - 2) {
      EXPECT_EQ(issued + 1 == place("wait", block), depth == 0) << block;
    }
  }
}

// B87.
TEST(Prefetch, GathersTheBlocksOfABackwardInOrderOneAhead) {
  constexpr int kBlocks = 12;
  for (const auto& [backend, size] : testing::two_engines(2)) {
    for (const bool with_last : {true, false}) {
      with_ranks(
          size,
          [&](const ProcessGroup& world) {
            Tensor without;
            for (const int depth : {0, 1, 2}) {
              Chain model(kBlocks, with_last);
              shard_chain(model, {.mesh = shard_mesh(world)});
              EventLog log(*model);
              std::vector<std::string> backward;
              const auto result = trained(model, depth, &log, &backward);
              std::vector<std::string> order;
              for (int block = kBlocks - 1; block >= 0; --block) {
                order.push_back(std::to_string(block));
              }
              EXPECT_THAT(only("gather", backward), ElementsAreArray(order));
              EXPECT_THAT(only("wait", backward), ElementsAreArray(order));
              EXPECT_EQ(most_gathered(backward), std::max(depth, 1) + 1);
              expect_gathers_ahead(backward, kBlocks, depth);
              without = depth == 0 ? result : without;
              EXPECT_TRUE(at::equal(result, without));
            }
          },
          backend);
    }
  }
}

struct CrossImpl : torch::nn::Module {
  CrossImpl()
      : fc(register_module(
            "fc", torch::nn::Linear(2 * testing::kWidth, testing::kWidth))) {}
  Tensor forward(const Tensor& x, const Tensor& memory) {
    return x + at::tanh(fc(at::cat({x, memory}, 1)));
  }
  torch::nn::Linear fc;
};
FSDP_MODULE(Cross);

struct EncoderDecoderImpl : torch::nn::Module {
  EncoderDecoderImpl()
      : encoder(register_module("encoder", torch::nn::ModuleList())),
        decoder(register_module("decoder", torch::nn::ModuleList())) {
    for (int i = 0; i < 3; ++i) {
      encoder->push_back(Block());
      decoder->push_back(Cross());
    }
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) {
    Tensor memory = x;
    for (const auto& block : *encoder) {
      memory = block->as<Block>()->forward(memory);
    }
    Tensor y = x;
    for (const auto& block : *decoder) {
      y = block->as<Cross>()->forward(y, memory);
    }
    return y;
  }
  torch::nn::ModuleList encoder;
  torch::nn::ModuleList decoder;
};
FSDP_MODULE(EncoderDecoder);

TEST(Prefetch, FollowsUsesAcrossAnEncoderAndADecoder) {
  for (const auto& [backend, size] : testing::two_engines(3)) {
    for (const int depth : {0, 1, 2}) {
      with_ranks(
          size,
          [&](const ProcessGroup& world) {
            EncoderDecoder plain;
            EncoderDecoder model;
            const FullyShardOptions options{.mesh = shard_mesh(world)};
            for (const auto* list : {&model->encoder, &model->decoder}) {
              for (const auto& block : **list) {
                fully_shard(block, options);
              }
            }
            fully_shard(model, options);
            set_prefetch_depth(*model, depth);
            const auto x = at::sin(at::arange(12, at::kDouble)).view({2, 6});
            EventLog log(*model);
            for (int step = 0; step < 2; ++step) {
              plain(x).square().sum().backward();
              const auto loss = model(x).square().sum();
              log.take();
              loss.backward();
              const auto events = log.take();
              EXPECT_THAT(
                  only("wait", events),
                  ElementsAre("2", "1", "0", "2", "1", "0"));
              EXPECT_EQ(only("gather", events).size(), 6u);
              EXPECT_LE(most_gathered(events), std::max(depth, 1) + 1);
              testing::expect_grads_of(*model, *plain);
            }
          },
          backend);
    }
  }
}

} // namespace
} // namespace fsdp
