#include "runtime/gradient_arena.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <thread>

#include "comm/host_memory.h"
#include "fsdp/memory.h"
#include "runtime/memory_account.h"
#include "unit/runtime/runtime_test.h"

namespace fsdp::testing {
namespace {

constexpr std::size_t kBytes = 64 << 10;

std::shared_ptr<GradientArena> make_arena(std::size_t bytes) {
  return std::make_shared<GradientArena>(
      SharedRegion::create(bytes + 128, "test"), 128, bytes);
}

TEST(GradientArena, ReusesBlocksOfOneSizeAndStartsAnewWhenAllAreFree) {
  const auto arena = make_arena(3 * kBytes);
  std::byte* first = arena->take(kBytes);
  std::byte* second = arena->take(kBytes - 1); // of the same footprint
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(second, first + kBytes);
  EXPECT_EQ(arena->offset_of(first), 128U);
  EXPECT_EQ(arena->offset_of(second + 5), 128U + kBytes + 5);
  arena->give_back(first, kBytes);
  EXPECT_EQ(arena->take(kBytes), first);
  EXPECT_EQ(arena->take(2 * kBytes), nullptr) << "no room";
  arena->give_back(second, kBytes - 1);
  arena->give_back(first, kBytes);
  EXPECT_EQ(arena->take(3 * kBytes), first) << "nothing is alive";
  EXPECT_EQ(arena->take(1), nullptr);
  int elsewhere = 0;
  EXPECT_EQ(arena->offset_of(&elsewhere), std::nullopt);
  EXPECT_EQ(arena->offset_of(first + 3 * kBytes), std::nullopt);
}

at::Tensor tensor_of(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
}

/// Makes tensors of this thread come from `arena` while it lives.
class Expecting {
 public:
  explicit Expecting(std::shared_ptr<GradientArena> arena) {
    ExpectedGradients::set_current(std::make_shared<ExpectedGradients>(
        ExpectedGradients{std::move(arena), {kBytes, 100}}));
  }
  ~Expecting() { ExpectedGradients::set_current(nullptr); }
};

TEST(GradientArena, ServesTheExpectedSizesOfItsThreadOnly) {
  install_counting_allocator();
  const auto arena = make_arena(2 * kBytes);
  const RankMemory mine;
  std::vector<at::Tensor> tensors;
  {
    const Expecting expecting(arena);
    tensors = {tensor_of(kBytes), tensor_of(kBytes), tensor_of(100)};
    std::thread([&] { tensors.push_back(tensor_of(kBytes)); }).join();
  }
  tensors.push_back(tensor_of(kBytes));
  std::vector<bool> in_arena;
  for (const at::Tensor& tensor : tensors) {
    in_arena.push_back(arena->offset_of(tensor.const_data_ptr()).has_value());
  }
  EXPECT_THAT(
      in_arena, ::testing::ElementsAre(true, false, false, false, false))
      << "a header lies before each: the second has no room, the third is "
         "small, the others are not of this thread or this time";
  EXPECT_EQ(memory_report().total.current, 3 * kBytes + 100);
}

TEST(GradientArena, LivesAsLongAsATensorInIt) {
  install_counting_allocator();
  at::Tensor tensor;
  {
    const Expecting expecting(make_arena(2 * kBytes));
    tensor = tensor_of(kBytes);
  }
  tensor.fill_(7);
  EXPECT_EQ(tensor.sum().item<std::int64_t>(), 7 * std::int64_t{kBytes});
}

struct WideImpl : torch::nn::Module {
  WideImpl() { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(linear(x)); }
  torch::nn::Linear linear{96, 96};
};
FSDP_MODULE(Wide);

struct WideStackImpl : torch::nn::Module {
  WideStackImpl() {
    for (int i = 0; i < 5; ++i) {
      layers->push_back(Wide());
    }
    register_module("layers", layers);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<Wide>()->forward(x);
    }
    return head(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{96, 200};
};
FSDP_MODULE(WideStack);

class GradientsInPlace : public OnRanks {};

/// Gradients of every rank differ, so that memory that was given back too early
/// shows.
at::Tensor input_of(int rank, int step) {
  return at::sin(at::arange(4 * 96, at::kFloat) * 0.3 + rank + 10 * step)
      .view({4, 96});
}

TEST_P(GradientsInPlace, EqualThePlainOnesAndAreNotCopied) {
  run([this](const ProcessGroup& world) {
    const RankMemory mine;
    WideStack plain;
    fill_distinct(*plain);
    WideStack model;
    fill_distinct(*model);
    const DeviceMesh mesh = shard_mesh(world);
    for (const auto& layer : *model->layers) {
      fully_shard(layer, {.mesh = mesh});
    }
    fully_shard(model, {.mesh = mesh});
    for (int step = 0; step < 4; ++step) {
      at::Tensor sum = at::zeros({}, at::kFloat);
      for (int rank = 0; rank < size(); ++rank) {
        sum = sum + plain(input_of(rank, step)).square().mean() / size();
      }
      sum.backward();
      model(input_of(world.rank(), step)).square().mean().backward();
      const auto infos = shard_infos(*model);
      const auto sharded = model->parameters();
      const auto full = plain->parameters();
      for (std::size_t i = 0; i < full.size(); ++i) {
        const at::Tensor expected =
            full[i].grad().narrow(0, infos[i].row_begin, infos[i].num_rows);
        EXPECT_TRUE(at::allclose(sharded[i].grad(), expected, 1e-4, 1e-6))
            << infos[i].name << ", step " << step;
      }
      plain->zero_grad();
      model->zero_grad();
    }
    // What was copied: the biases of two messages.
    EXPECT_LE(
        memory_report()[MemoryComponent::kReduction].current,
        2 * 4 * (96 + 200 + 64));
  });
}

TEST_P(GradientsInPlace, MayBeNegatedViews) {
  run([this](const ProcessGroup& world) {
    Wide plain;
    fill_distinct(*plain);
    Wide model;
    fill_distinct(*model);
    fully_shard(model, {.mesh = shard_mesh(world)});
    model->linear->weight.register_hook(
        [](const at::Tensor& grad) { return at::_neg_view(grad); });
    at::Tensor sum = at::zeros({}, at::kFloat);
    for (int rank = 0; rank < size(); ++rank) {
      sum = sum + plain(input_of(rank, 0)).sum() / size();
    }
    sum.backward();
    model(input_of(world.rank(), 0)).sum().backward();
    const ShardInfo rows = shard_infos(*model).front();
    EXPECT_TRUE(at::allclose(
        model->linear->weight.grad(),
        -plain->linear->weight.grad().narrow(0, rows.row_begin, rows.num_rows),
        1e-4,
        1e-6));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GradientsInPlace,
    ::testing::Combine(
        ::testing::Values("inproc"), ::testing::Values(1, 2, 3, 4, 8)),
    name_of_ranks);

} // namespace
} // namespace fsdp::testing
