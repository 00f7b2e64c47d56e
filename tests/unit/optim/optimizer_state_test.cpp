// Keeping an optimizer's state and going on with it.

#include "fsdp/optim_state.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/optim.h"
#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::loss_of;
using testing::Stack;
using testing::thrown_text;
using testing::with_ranks;

using Make = std::unique_ptr<Optimizer> (*)(std::vector<Tensor> parameters);

const Make kAll[] = {
    [](std::vector<Tensor> p) -> std::unique_ptr<Optimizer> {
      return std::make_unique<AdamW>(std::move(p), AdamWOptions{.lr = 0.01});
    },
    [](std::vector<Tensor> p) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Adam>(std::move(p), AdamOptions{.lr = 0.01});
    },
    [](std::vector<Tensor> p) -> std::unique_ptr<Optimizer> {
      return std::make_unique<SGD>(
          std::move(p), SGDOptions{.lr = 0.1, .momentum = 0.9});
    },
    [](std::vector<Tensor> p) -> std::unique_ptr<Optimizer> {
      return std::make_unique<SGD>(std::move(p), SGDOptions{.lr = 0.1});
    }};

void train(
    Stack& model, Optimizer& optimizer, const ProcessGroup& world, int step) {
  loss_of(model, batch_of(world.rank(), world.size(), step)).backward();
  optimizer.step();
  optimizer.zero_grad();
}

TEST(OptimizerState, IsGoneOnWithBitByBit) {
  for (const Make make : kAll) {
    with_ranks(3, [make](const ProcessGroup& world) {
      Stack model;
      testing::shard_stack(model, world);
      auto optimizer = make(model->parameters());
      for (int step = 0; step < 3; ++step) {
        train(model, *optimizer, world, step);
      }
      const OptimizerState kept = optimizer_state(*model, *optimizer);
      Stack other;
      testing::shard_stack(other, world);
      {
        c10::AutoGradMode grad_off(false);
        const auto from = model->parameters();
        const auto to = other->parameters();
        for (std::size_t i = 0; i < to.size(); ++i) {
          to[i].copy_(from[i]);
        }
      }
      auto successor = make(other->parameters());
      EXPECT_THAT(load_optimizer_state(*other, *successor, kept), IsEmpty());
      for (int step = 3; step < 6; ++step) {
        train(model, *optimizer, world, step);
        train(other, *successor, world, step);
      }
      for (const auto& entry : model->named_parameters()) {
        EXPECT_TRUE(entry.value().equal(other->named_parameters()[entry.key()]))
            << entry.key();
      }
    });
  }
}

TEST(OptimizerState, IsACopyOfThisRanksRows) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    AdamW optimizer(model->parameters());
    EXPECT_THAT(optimizer_state(*model, optimizer).at("last.bias"), IsEmpty());
    train(model, optimizer, world, 0);
    const OptimizerState state = optimizer_state(*model, optimizer);
    const ParameterState& entry = state.at("blocks.1.in.weight");
    EXPECT_EQ(
        entry.at("exp_avg").sizes(),
        model->named_parameters()["blocks.1.in.weight"].sizes());
    const Tensor before = entry.at("exp_avg").clone();
    train(model, optimizer, world, 1);
    EXPECT_TRUE(entry.at("exp_avg").equal(before));
    EXPECT_EQ(entry.at("step").item<float>(), 1);
  });
}

TEST(OptimizerState, ThatLacksAParameterIsNamedOrBegunAnew) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    AdamW optimizer(model->parameters());
    train(model, optimizer, world, 0);
    train(model, optimizer, world, 1);
    const OptimizerState whole = optimizer_state(*model, optimizer);
    const std::string what_to_do =
        "; load the state of the same model and optimizer, or pass strict = "
        "false to begin anew where it does not fit";
    const auto refused = [&](const OptimizerState& state) {
      return thrown_text<UsageError>(
          [&] { load_optimizer_state(*model, optimizer, state); });
    };

    OptimizerState lacking = whole;
    lacking.at("first.weight").erase("exp_avg");
    lacking.erase("last.bias");
    lacking["gone.weight"] = {};
    EXPECT_EQ(
        refused(lacking),
        "no optimizer state 'exp_avg' for 'first.weight'" + what_to_do);
    lacking.at("first.weight") = whole.at("first.weight");
    EXPECT_EQ(
        refused(lacking), "no optimizer state for 'last.bias'" + what_to_do);
    lacking["last.bias"] = whole.at("last.bias");
    EXPECT_EQ(
        refused(lacking),
        "optimizer state for 'gone.weight', which it does not step" +
            what_to_do);

    lacking.at("first.weight").erase("exp_avg");
    lacking.erase("last.bias");
    EXPECT_THAT(
        load_optimizer_state(*model, optimizer, lacking, /*strict=*/false),
        ElementsAre("first.weight", "last.bias", "gone.weight"));
    const OptimizerState after = optimizer_state(*model, optimizer);
    EXPECT_THAT(after.at("first.weight"), IsEmpty());
    EXPECT_THAT(after.at("last.bias"), IsEmpty());
    EXPECT_EQ(after.at("last.weight").at("step").item<float>(), 2);
    train(model, optimizer, world, 2);
    const OptimizerState later = optimizer_state(*model, optimizer);
    EXPECT_EQ(later.at("first.weight").at("step").item<float>(), 1);
    EXPECT_EQ(later.at("last.weight").at("step").item<float>(), 3);
  });
}

TEST(OptimizerState, OfAnotherShapeOrModelIsRefusedAndNothingIsLost) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    AdamW optimizer(model->parameters());
    train(model, optimizer, world, 0);
    OptimizerState state = optimizer_state(*model, optimizer);
    state.at("blocks.0.in.bias").at("exp_avg").zero_();
    state.at("last.bias")["step"] = at::zeros({2});
    for (const bool strict : {true, false}) {
      EXPECT_EQ(
          thrown_text<UsageError>(
              [&] { load_optimizer_state(*model, optimizer, state, strict); }),
          "optimizer state 'step' of 'last.bias' is Float [2], expected Float "
          "[]; load what this rank has kept of the same model");
    }
    EXPECT_TRUE(optimizer_state(*model, optimizer)
                    .at("blocks.0.in.bias")
                    .at("exp_avg")
                    .any()
                    .item<bool>());
    EXPECT_EQ(
        thrown_text<UsageError>(
            [&] { optimizer_state(*model->first, optimizer); }),
        "parameter 2 of the optimizer is not below module "
        "'torch::nn::LinearImpl'; name the module whose parameters it was made "
        "with");
    unshard(*model);
    EXPECT_EQ(
        thrown_text<UsageError>([&] { optimizer_state(*model, optimizer); }),
        "the optimizer state of 'first.weight' is asked for while the "
        "parameter is gathered; reshard() its unit first");
    reshard(*model);
  });
}

} // namespace
} // namespace fsdp
