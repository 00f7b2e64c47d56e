// Models that are sharded without memory: materialize() and to_empty() after
// fully_shard.

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/clip_grad.h"
#include "fsdp/memory.h"
#include "fsdp/meta_init.h"
#include "fsdp/optim.h"
#include "unit/runtime/meta_test.h"
#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using testing::kSeed;
using testing::OnRanks;
using testing::shard_mesh;
using testing::thrown_text;
using testing::with_ranks;

struct LayerImpl : nn::Module {
  explicit LayerImpl(std::int64_t width) {
    in = register_module("in", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(3 * width, width));
    gain = register_parameter("gain", at::randn({2}) * 0.1 + 1);
    bias = register_parameter("bias", at::rand({width}), false);
  }
  Tensor forward(const Tensor& x) {
    return x + gain[0] * out(at::tanh(in(x))) + bias;
  }
  nn::Linear in{nullptr};
  nn::Linear out{nullptr};
  Tensor gain; // fewer rows than ranks
  Tensor bias; // frozen
};
FSDP_MODULE(Layer);

/// Fills its weights twice, as models do: the embedding's constructor, then
/// this one. Its head is its embedding.
struct TinyImpl : nn::Module {
  explicit TinyImpl(std::int64_t width = 6) {
    embedding = register_module("embedding", nn::Embedding(11, width));
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      layers->push_back(Layer(width));
    }
    head = register_parameter("head", embedding->weight);
    shift = register_parameter("shift", at::rand({11}));
    scale = register_buffer("scale", at::linspace(0.5, 1.5, width));
    position = at::arange(width) * 0.01;
    for (const auto& item : named_parameters()) {
      if (item.value().dim() == 2) {
        nn::init::normal_(item.value(), 0, 0.3);
      }
    }
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = embedding(tokens) * scale + position;
    for (const auto& layer : *layers) {
      x = layer->as<Layer>()->forward(x);
    }
    return at::linear(x, head, shift);
  }
  nn::Embedding embedding{nullptr};
  nn::ModuleList layers;
  Tensor head;
  Tensor shift;
  Tensor scale;
  Tensor position; // not registered
};
FSDP_MODULE(Tiny);

Tiny eager_tiny(std::int64_t width = 6) {
  // Ranks that are threads share the generator.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  at::manual_seed(kSeed);
  return Tiny(width);
}

Tiny meta_tiny(std::int64_t width = 6) {
  const MetaInitGuard guard;
  return Tiny(width);
}

void shard(Tiny& model, const FullyShardOptions& options) {
  for (const auto& layer : *model->layers) {
    fully_shard(layer, options);
  }
  fully_shard(model, options);
}

Tensor loss_of(Tiny& model, int rank, int step) {
  const Tensor tokens =
      (at::arange(rank * 5, rank * 5 + 5) * 7 + step).remainder(11);
  return at::cross_entropy_loss(model(tokens), (tokens + 3).remainder(11));
}

/// [collective] Bit for bit.
void expect_same_parameters(Tiny& got, Tiny& expected) {
  const auto values = full_parameters(*got);
  const auto others = full_parameters(*expected);
  ASSERT_EQ(values.size(), others.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i].first, others[i].first);
    EXPECT_TRUE(at::equal(values[i].second, others[i].second))
        << values[i].first;
  }
}

class MetaStart : public OnRanks {};

TEST_P(MetaStart, HasTheWeightsOfTheUnshardedModel) {
  run([](const ProcessGroup& world) {
    Tiny plain = eager_tiny();
    Tiny model = meta_tiny();
    shard(model, {.mesh = shard_mesh(world)});
    materialize(model, kSeed);
    expect_same_parameters(model, plain);
    EXPECT_TRUE(at::equal(model->scale, plain->scale));
    EXPECT_TRUE(at::equal(model->position, plain->position));
    EXPECT_FALSE(model->layers[0]->named_parameters()["bias"].requires_grad());
  });
}

TEST_P(MetaStart, TrainsLikeAModelThatWasMadeWithMemory) {
  run([](const ProcessGroup& world) {
    const FullyShardOptions options{
        .mesh = shard_mesh(world),
        .mp_policy = {
            .param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
    Tiny eager = eager_tiny();
    shard(eager, options);
    Tiny model = meta_tiny();
    shard(model, options);
    AdamW of_meta(model->parameters(), {.lr = 0.01}); // before it has memory
    materialize(model, kSeed);
    AdamW of_eager(eager->parameters(), {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      for (auto* each : {&model, &eager}) {
        loss_of(*each, world.rank(), step).backward();
        clip_grad_norm_(**each, 0.5);
      }
      for (auto* optimizer : {&of_meta, &of_eager}) {
        optimizer->step();
        optimizer->zero_grad();
      }
      expect_same_parameters(model, eager);
    }
  });
}

TEST_P(MetaStart, TrainsFromEmptyMemoryThatTheUserFills) {
  run([](const ProcessGroup& world) {
    Tiny plain = eager_tiny();
    Tiny eager = eager_tiny();
    shard(eager, {.mesh = shard_mesh(world)});
    Tiny model = meta_tiny();
    shard(model, {.mesh = shard_mesh(world)});
    to_empty(model);
    {
      c10::AutoGradMode grad_off(false);
      const auto params = model->named_parameters();
      for (const auto& info : shard_infos(*model)) {
        params[info.name].copy_(plain->named_parameters()[info.name].narrow(
            0, info.row_begin, info.num_rows));
      }
      model->scale.copy_(plain->scale);
      model->position = plain->position; // not registered: the user's
    }
    for (int step = 0; step < 2; ++step) {
      for (auto* each : {&model, &eager}) {
        loss_of(*each, world.rank(), step).backward();
        testing::sgd_step(**each);
        (*each)->zero_grad();
      }
      expect_same_parameters(model, eager);
    }
  });
}

TEST_P(MetaStart, ForwardNamesParametersWithoutMemory) {
  run([](const ProcessGroup& world) {
    Tiny model = meta_tiny();
    shard(model, {.mesh = shard_mesh(world)});
    const std::string rank = "[rank " + std::to_string(world.rank()) + "] ";
    const std::string whole =
        " needs memory for 'embedding.weight', 'shift', "
        "'layers.0.in.weight', 'layers.0.in.bias', 'layers.0.out.weight', "
        "'layers.0.out.bias', 'layers.0.gain', 'layers.0.bias', "
        "'layers.1.in.weight', 'layers.1.in.bias' and 4 more, still on the "
        "meta device; call materialize() or to_empty() first";
    // Whichever rank is first, the others may hear of its failure instead.
    const auto expect_failure = [&](const std::string& text, auto&& action) {
      try {
        action();
        ADD_FAILURE() << "threw nothing";
      } catch (const UsageError& error) {
        EXPECT_EQ(error.what(), rank + text);
      } catch (const PeerError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
      }
    };
    expect_failure("the forward of the root unit" + whole, [&] {
      loss_of(model, world.rank(), 0);
    });
    expect_failure(
        "unshard() of unit 'layers.1' needs memory for 'layers.1.in.weight', "
        "'layers.1.in.bias', 'layers.1.out.weight', 'layers.1.out.bias', "
        "'layers.1.gain', 'layers.1.bias', still on the meta device; call "
        "materialize() or to_empty() first",
        [&] { unshard(*model->layers[1]); });
    materialize(model, kSeed);
    loss_of(model, world.rank(), 0).backward();
    EXPECT_TRUE(model->embedding->weight.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    MetaStart,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

TEST(MetaStartErrors, OneRankWithoutMemoryIsToldToTheOthers) {
  for (const char* backend : {"inproc", "gloo"}) {
    with_ranks(
        3,
        [](const ProcessGroup& world) {
          Tiny model = meta_tiny();
          shard(model, {.mesh = shard_mesh(world)});
          if (world.rank() != 1) {
            materialize(model, kSeed);
            EXPECT_THAT(
                thrown_text<PeerError>(
                    [&] { loss_of(model, world.rank(), 0); }),
                ::testing::HasSubstr("needs memory for 'embedding.weight'"));
          } else {
            thrown_text<UsageError>([&] { loss_of(model, world.rank(), 0); });
            materialize(model, kSeed);
          }
          loss_of(model, world.rank(), 0).backward();
        },
        backend);
  }
}

TEST(MetaStartErrors, FullParametersNeedMemory) {
  Tiny plain = meta_tiny();
  EXPECT_EQ(
      thrown_text<UsageError>([&] { full_parameters(*plain); }),
      "full_parameters: 'head', 'shift', 'embedding.weight', "
      "'layers.0.gain', 'layers.0.bias', 'layers.0.in.weight', "
      "'layers.0.in.bias', 'layers.0.out.weight', 'layers.0.out.bias', "
      "'layers.1.gain' and 5 more: still on the meta device; call "
      "materialize() or to_empty() first");
  with_ranks(1, [](const ProcessGroup& world) {
    Layer layer{nullptr};
    {
      const MetaInitGuard guard;
      layer = Layer(2);
    }
    fully_shard(layer, {.mesh = shard_mesh(world)});
    EXPECT_EQ(
        thrown_text<UsageError>([&] { full_parameters(*layer); }),
        "full_parameters: 'gain', 'bias', 'in.weight', 'in.bias', "
        "'out.weight', 'out.bias': still on the meta device; call "
        "materialize() or to_empty() first");
  });
}

TEST(MetaStartErrors, WritesBeforeMaterializeAreRefused) {
  with_ranks(2, [](const ProcessGroup& world) {
    Tiny model = meta_tiny();
    shard(model, {.mesh = shard_mesh(world)});
    nn::init::zeros_(model->shift);
    EXPECT_EQ(
        thrown_text<UsageError>([&] { materialize(model, kSeed); }),
        "materialize: 'shift' was written to outside of its "
        "MetaInitGuard, which would be lost; initialise it inside the guard, "
        "or after materialize()");
    EXPECT_EQ(clip_grad_norm_(*model, 1.0), 0); // there are no gradients yet
  });
}

TEST(MetaStartErrors, EmptyMemoryIsOnTheMeshsDevice) {
  with_ranks(1, [](const ProcessGroup& world) {
    Tiny model = meta_tiny();
    shard(model, {.mesh = shard_mesh(world)});
    EXPECT_EQ(
        thrown_text<UsageError>(
            [&] { to_empty(model, c10::Device(c10::DeviceType::CUDA, 0)); }),
        "to_empty: device is cuda:0, the mesh of parameter "
        "'head' is on cpu; pass the mesh's device");
    EXPECT_TRUE(model->embedding->weight.is_meta());
  });
}

TEST(MetaStartOrder, ShardingMayBeInsideTheGuard) {
  with_ranks(2, [](const ProcessGroup& world) {
    Tiny plain = eager_tiny();
    Tiny model{nullptr};
    {
      const MetaInitGuard guard;
      model = Tiny();
      shard(model, {.mesh = shard_mesh(world)});
    }
    materialize(model, kSeed);
    expect_same_parameters(model, plain);
    loss_of(model, world.rank(), 0).backward();
  });
}

TEST(MetaStartOrder, ADtypeGivenAfterShardingIsKept) {
  Layer plain{nullptr};
  at::manual_seed(kSeed);
  plain = Layer(4);
  plain->to(at::kDouble);
  with_ranks(2, [&](const ProcessGroup& world) {
    Layer model{nullptr};
    {
      const MetaInitGuard guard;
      model = Layer(4);
    }
    fully_shard(model, {.mesh = shard_mesh(world)});
    model->to(at::kDouble);
    materialize(model, kSeed);
    testing::expect_params_of(*model, *plain, 0);
    model(at::ones({2, 4}, at::kDouble)).sum().backward();
    EXPECT_EQ(model->gain.grad().scalar_type(), at::kDouble);
  });
}

TEST(MetaStartOrder, MaterializingBeforeShardingWorksToo) {
  with_ranks(3, [](const ProcessGroup& world) {
    Tiny plain = eager_tiny();
    Tiny model = meta_tiny();
    world.barrier("nobody seeds the shared generator any more");
    materialize(*model->layers[0], kSeed);
    shard(model, {.mesh = shard_mesh(world)});
    materialize(model, kSeed);
    expect_same_parameters(model, plain);
    loss_of(model, world.rank(), 0).backward();
  });
}

// One full tensor at a time, of all ranks together: they take turns.
TEST(MetaStartMemory, HoldsOneFullTensorAtATime) {
  install_counting_allocator();
  constexpr std::int64_t kWidth = 256;
  constexpr std::int64_t kSlack = 64 << 10;
  for (const int size : {1, 2, 4, 8}) {
    std::int64_t total = 0;
    std::int64_t largest = 0;
    const Tiny shape = meta_tiny(kWidth);
    for (const auto& item : shape->named_parameters()) {
      if (item.key() == "head") {
        continue; // the embedding
      }
      const Tensor& param = item.value();
      total += static_cast<std::int64_t>(param.nbytes());
      largest = std::max(largest, static_cast<std::int64_t>(param.nbytes()));
    }
    ASSERT_GT(total, 3 * largest + 4 * kSlack);
    const std::int64_t before = memory_report().total.current;
    with_ranks(size, [&](const ProcessGroup& world) {
      Tiny model = meta_tiny(kWidth);
      shard(model, {.mesh = shard_mesh(world)});
      world.barrier();
      EXPECT_LT(memory_report().total.current - before, kSlack);
      world.barrier();
      reset_peak_memory();
      world.barrier();
      materialize(model, kSeed);
      world.barrier();
      EXPECT_LT(memory_report().total.peak - before, total + largest + kSlack);
      EXPECT_GE(memory_report().total.current - before, total);
      if (world.rank() == 0) {
        RecordProperty(
            "peak_over_shards_" + std::to_string(size),
            std::to_string(memory_report().total.peak - before - total));
        RecordProperty("largest", std::to_string(largest));
      }
      world.barrier();
    });
  }
}

} // namespace
} // namespace fsdp
