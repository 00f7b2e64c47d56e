#include "fsdp/hooked.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace fsdp {
namespace {

using at::Tensor;

/// Counts what reaches the hooks.
struct Recorder final : detail::ForwardHooks {
  void pre_forward(
      const std::vector<Tensor*>& inputs,
      const std::vector<Tensor*>& fixed) override {
    ++num_pre;
    num_inputs = inputs.size();
    num_fixed = fixed.size();
    if (replace_inputs) {
      for (Tensor* input : inputs) {
        *input = *input * 2;
      }
    }
  }
  void post_forward(const std::vector<Tensor*>& outputs) override {
    ++num_post;
    num_outputs = outputs.size();
  }
  void forward_failed() noexcept override { ++num_failed; }

  int num_pre = 0;
  int num_post = 0;
  int num_failed = 0;
  std::size_t num_inputs = 0;
  std::size_t num_fixed = 0;
  std::size_t num_outputs = 0;
  bool replace_inputs = false;
};

template <typename Holder>
std::shared_ptr<Recorder> record(Holder& holder) {
  auto recorder = std::make_shared<Recorder>();
  holder->set_fsdp_hooks(recorder);
  return recorder;
}

struct PlainImpl : torch::nn::Module {
  explicit PlainImpl(int width = 4)
      : fc(register_module("fc", torch::nn::Linear(width, width))) {}
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc;
};
FSDP_MODULE(Plain);

struct DefaultsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, Tensor mask = {}, int times = 3) const {
    return mask.defined() ? x * mask * times : x * times;
  }
};
FSDP_MODULE(Defaults);

struct InPlaceImpl : torch::nn::Module {
  void forward(Tensor& x) noexcept { x.add_(1); }
};
FSDP_MODULE(InPlace);

struct NestedImpl : torch::nn::Module {
  std::map<std::string, std::vector<Tensor>> forward(
      std::unique_ptr<int> move_only, const std::vector<Tensor>& xs) {
    if (!move_only) {
      throw std::runtime_error("no number");
    }
    return {{"xs", xs}, {"none", {}}};
  }
};
FSDP_MODULE(Nested);

struct NothingImpl : torch::nn::Module {
  Tensor forward() { return at::ones({1}); }
};
FSDP_MODULE(Nothing);

struct VirtualImpl : torch::nn::Module {
  virtual Tensor forward(Tensor x) { return x; }
};
FSDP_MODULE(Virtual);

struct Output {
  Tensor logits;
  std::optional<std::pair<Tensor, Tensor>> state;
};
template <typename F>
void fsdp_for_each_tensor(Output& output, F&& f) {
  f(output.logits);
  for_each_tensor(output.state, f);
}
struct StructImpl : torch::nn::Module {
  Output forward(Tensor x) { return {x, std::pair{x, x}}; }
};
FSDP_MODULE(Struct);

const Tensor& input() {
  static const Tensor x = at::ones({2, 4});
  return x;
}

TEST(Hooked, CatchesEveryWayToCallThroughTheHolder) {
  Plain block(4);
  const auto recorder = record(block);
  block(input());
  block->forward(input());
  torch::nn::Sequential sequence(block);
  sequence->forward(input());
  torch::nn::ModuleList list;
  list->push_back(block);
  list[0]->as<Plain>()->forward(input());
  EXPECT_EQ(recorder->num_pre, 4);
  EXPECT_EQ(recorder->num_post, 4);
  EXPECT_EQ(recorder->num_outputs, 1u);
}

TEST(Hooked, KeepsParameterNamesAndPrintsTheUsersName) {
  Plain block(4);
  EXPECT_THAT(
      block->named_parameters().keys(),
      ::testing::ElementsAre("fc.weight", "fc.bias"));
  std::ostringstream text;
  text << *block;
  EXPECT_THAT(text.str(), ::testing::HasSubstr("Plain("));
  EXPECT_THAT(text.str(), ::testing::Not(::testing::HasSubstr("WithForward")));
}

TEST(Hooked, WithoutHooksIsThePlainModule) {
  Plain block(4);
  EXPECT_TRUE(at::equal(block(input()), block->fc(input())));
}

TEST(Hooked, SupportsDefaultArgumentsAndConst) {
  Defaults block;
  const auto recorder = record(block);
  EXPECT_EQ(block(input()).sum().item<float>(), 24);
  EXPECT_EQ(block->forward(input()).sum().item<float>(), 24);
  EXPECT_EQ(block(input(), input() * 2).sum().item<float>(), 48);
  EXPECT_EQ(block->forward(input(), input(), 1).sum().item<float>(), 8);
  EXPECT_EQ(recorder->num_pre, 4);
}

TEST(Hooked, HandsInputsThatMayBeReplacedAndThoseThatMayNot) {
  Plain by_value(4);
  const auto first = record(by_value);
  first->replace_inputs = true;
  const Tensor doubled = by_value->fc(input() * 2);
  EXPECT_TRUE(at::equal(by_value(input()), doubled));
  EXPECT_EQ(input().sum().item<float>(), 8) << "the caller's tensor changed";

  InPlace by_reference;
  const auto second = record(by_reference);
  Tensor x = at::zeros({2});
  by_reference(x);
  EXPECT_EQ(x.sum().item<float>(), 2);
  EXPECT_EQ(second->num_fixed, 1u);
  EXPECT_EQ(second->num_inputs, 0u);
}

TEST(Hooked, VisitsNestedTensorsAndMoveOnlyArguments) {
  Nested block;
  const auto recorder = record(block);
  block(std::make_unique<int>(1), std::vector<Tensor>{input(), input()});
  EXPECT_EQ(recorder->num_inputs, 2u);
  EXPECT_EQ(recorder->num_outputs, 2u);
  Struct own;
  const auto own_recorder = record(own);
  own(input());
  EXPECT_EQ(own_recorder->num_outputs, 3u);
}

TEST(Hooked, TellsOfAnExceptionAndPassesItOn) {
  Nested block;
  const auto recorder = record(block);
  EXPECT_THROW(block(nullptr, std::vector<Tensor>{}), std::runtime_error);
  EXPECT_EQ(recorder->num_failed, 1);
  EXPECT_EQ(recorder->num_post, 0);
}

TEST(Hooked, CatchesNoArgumentsAndVirtualForwards) {
  Nothing nothing;
  const auto first = record(nothing);
  nothing();
  EXPECT_EQ(first->num_pre, 1);
  Virtual derived;
  const auto second = record(derived);
  VirtualImpl& base = *derived;
  base.forward(input());
  EXPECT_EQ(second->num_pre, 1);
}

TEST(Hooked, WrapsStockModules) {
  HookedHolder<torch::nn::LSTMImpl> lstm(torch::nn::LSTMOptions(4, 4));
  const auto first = record(lstm);
  lstm->forward(at::ones({3, 1, 4}));
  lstm(at::ones({3, 1, 4}));
  EXPECT_EQ(first->num_pre, 2);
  EXPECT_EQ(first->num_outputs, 3u);
  HookedHolder<torch::nn::MultiheadAttentionImpl> attention(
      torch::nn::MultiheadAttentionOptions(4, 2));
  const auto second = record(attention);
  const Tensor x = at::ones({3, 1, 4});
  attention(x, x, x);
  EXPECT_EQ(second->num_inputs, 3u);
}

struct ShiftImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, double shift = 1) { return x + shift; }
};
FSDP_MODULE_EXACT(Shift);

TEST(Hooked, ExactModulesFitInSequentialWithTheirFullSignature) {
  Shift shift;
  const auto first = record(shift);
  torch::nn::Sequential one(shift);
  EXPECT_TRUE(at::equal(one->forward(input(), 3.0), input() + 3));
  EXPECT_EQ(first->num_pre, 1);
}

TEST(Hooked, RefusesToBeCloned) {
  Plain block(4);
  try {
    block->clone();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("would lose its hooks"));
  }
}

TEST(RunUnit, RunsAnotherEntryPointBetweenTheHooks) {
  Plain block(4);
  const auto recorder = record(block);
  const Tensor y = run_unit(block, [&] { return block->fc->weight.sum(); });
  EXPECT_TRUE(y.defined());
  EXPECT_EQ(recorder->num_pre, 1);
  EXPECT_EQ(recorder->num_outputs, 1u);
}

} // namespace
} // namespace fsdp
