// Which dtype everything has under a MixedPrecisionPolicy, and after the
// parameters were converted or loaded.

#include <torch/nn/modules/embedding.h>
#include <torch/optim/adamw.h>

#include <map>
#include <optional>

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
using testing::thrown_text;
using testing::whole_batch;
using testing::with_ranks;

constexpr auto kFloat = at::kFloat;
constexpr auto kBFloat16 = at::kBFloat16;

struct Sides {
  Tensor hidden;
  std::vector<std::pair<Tensor, std::int64_t>> extras;
};
template <typename F>
void fsdp_for_each_tensor(Sides& sides, F&& f) {
  f(sides.hidden);
  for_each_tensor(sides.extras, f);
}

/// Notes the dtypes that its forward sees.
struct NotesImpl : torch::nn::Module {
  NotesImpl()
      : fc(register_module("fc", torch::nn::Linear(4, 4))),
        scale(register_buffer("scale", at::full({4}, 0.5))) {
    testing::fill_distinct(*this);
  }
  Sides forward(const Sides& in, const Tensor& tokens, double factor) {
    weight = fc->weight.scalar_type();
    weight_sizes = fc->weight.sizes().vec();
    hidden = in.hidden.scalar_type();
    extra = in.extras[0].first.scalar_type();
    token = tokens.scalar_type();
    buffer = scale.scalar_type();
    const auto y = fc(in.hidden.to(weight)) * scale.to(weight) * factor;
    return {y, {{tokens + 1, 7}, {in.extras[0].first, 8}}};
  }
  torch::nn::Linear fc;
  Tensor scale;
  c10::ScalarType weight{}, hidden{}, extra{}, token{}, buffer{};
  std::vector<std::int64_t> weight_sizes;
};
FSDP_MODULE(Notes);

class MixedPrecision : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    MixedPrecision,
    ::testing::Values(
        std::tuple{"inproc", 1},
        std::tuple{"inproc", 2},
        std::tuple{"inproc", 4},
        std::tuple{"gloo", 2}),
    testing::name_of_ranks);

TEST_P(MixedPrecision, GivesEachTensorItsDtype) {
  run([](const ProcessGroup& world) {
    struct Case {
      std::optional<c10::ScalarType> param, output;
      bool cast_inputs;
    };
    for (const auto& [param, output, cast_inputs] :
         {Case{std::nullopt, std::nullopt, true},
          {kBFloat16, std::nullopt, true},
          {kBFloat16, kFloat, true},
          {at::kHalf, at::kDouble, true},
          {kBFloat16, std::nullopt, false},
          {std::nullopt, kBFloat16, true}}) {
      Notes model;
      FullyShardOptions options{.mesh = shard_mesh(world)};
      options.mp_policy.param_dtype = param;
      options.mp_policy.reduce_dtype = kFloat;
      options.mp_policy.output_dtype = output;
      options.mp_policy.cast_forward_inputs = cast_inputs;
      fully_shard(model, options);
      torch::optim::AdamW optimizer(model->parameters(), 1e-3);
      const auto compute = param.value_or(kFloat);
      std::optional<c10::ScalarType> at_hook;
      model->fc->weight.register_hook(
          [&](const Tensor& grad) { at_hook = grad.scalar_type(); });
      const Tensor buffer = model->scale;
      for (int step = 0; step < 2; ++step) {
        const Tensor x = at::ones({2, 4});
        const Tensor tokens = at::arange(4, at::kLong);
        const Sides out = model(Sides{x, {{x, 5}}}, tokens, 1.5);
        EXPECT_EQ(model->weight, compute);
        EXPECT_EQ(model->weight_sizes, (std::vector<std::int64_t>{4, 4}));
        EXPECT_EQ(model->hidden, cast_inputs ? compute : kFloat);
        EXPECT_EQ(model->extra, cast_inputs ? compute : kFloat);
        EXPECT_EQ(model->token, at::kLong);
        EXPECT_EQ(model->buffer, kFloat);
        EXPECT_EQ(x.scalar_type(), kFloat);
        EXPECT_EQ(out.hidden.scalar_type(), output.value_or(compute));
        EXPECT_EQ(out.extras[0].first.scalar_type(), at::kLong);
        EXPECT_EQ(
            out.extras[1].first.scalar_type(),
            output.value_or(cast_inputs ? compute : kFloat));
        out.hidden.sum().backward();
        EXPECT_EQ(at_hook, compute);
        EXPECT_EQ(model->fc->weight.scalar_type(), kFloat);
        EXPECT_EQ(model->fc->weight.grad().scalar_type(), kFloat);
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_TRUE(model->scale.is_same(buffer));
      EXPECT_TRUE(at::equal(model->scale, at::full({4}, 0.5)));
      for (const auto& entry : optimizer.state()) {
        const auto& state =
            static_cast<const torch::optim::AdamWParamState&>(*entry.second);
        EXPECT_EQ(state.exp_avg().scalar_type(), kFloat);
      }
    }
  });
}

struct NestedPolicyImpl : torch::nn::Module {
  NestedPolicyImpl()
      : embed(register_module("embed", torch::nn::Embedding(5, 4))),
        inner(register_module("inner", Notes())) {
    testing::fill_distinct(*this);
  }
  Tensor forward(const Tensor& tokens, const Tensor& x) {
    outer_weight = embed->weight.scalar_type();
    outer_input = x.scalar_type();
    const auto hidden = embed(tokens) + x;
    return inner(Sides{hidden, {{x, 0}}}, tokens, 1.0).hidden;
  }
  torch::nn::Embedding embed;
  Notes inner;
  c10::ScalarType outer_weight{}, outer_input{};
};
FSDP_MODULE(NestedPolicy);

TEST_P(MixedPrecision, IsEachUnitsOwn) {
  run([](const ProcessGroup& world) {
    NestedPolicy model;
    FullyShardOptions options{.mesh = shard_mesh(world)};
    options.mp_policy.param_dtype = kBFloat16;
    options.mp_policy.output_dtype = kFloat;
    fully_shard(model->inner, options);
    fully_shard(model, {.mesh = shard_mesh(world)});
    const auto y = model(at::arange(4, at::kLong), at::ones({4, 4}));
    EXPECT_EQ(model->outer_weight, kFloat);
    EXPECT_EQ(model->outer_input, kFloat);
    EXPECT_EQ(model->inner->weight, kBFloat16);
    EXPECT_EQ(model->inner->hidden, kBFloat16);
    EXPECT_EQ(y.scalar_type(), kFloat);
    y.sum().backward();
    for (const auto& param : model->parameters()) {
      EXPECT_EQ(param.grad().scalar_type(), kFloat);
    }
  });
}

/// The gradient of Scale(1) whose input on rank r is by_rank[r].
Tensor reduced(
    const ProcessGroup& world,
    const MixedPrecisionPolicy& policy,
    const std::vector<double>& by_rank) {
  Scale model(at::ones({4}));
  fully_shard(model, {.mesh = shard_mesh(world), .mp_policy = policy});
  const double x = by_rank[static_cast<std::size_t>(world.rank())];
  model(at::full({4}, x, kFloat)).sum().backward();
  return model->weight.grad();
}

// B73.
TEST(MixedPrecision, ReducesInTheReduceDtypeOrElseTheComputeDtype) {
  for (const auto& [backend, size] : testing::two_engines(4)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          const std::vector<double> by_rank{256, 1, 1, 1};
          EXPECT_EQ(
              reduced(
                  world,
                  {.param_dtype = kBFloat16, .reduce_dtype = kFloat},
                  by_rank)
                  .item<float>(),
              64.75f);
          const auto in_bf16 = [&](const MixedPrecisionPolicy& policy) {
            const Tensor mean = reduced(world, policy, by_rank);
            EXPECT_EQ(mean.scalar_type(), kFloat);
            EXPECT_TRUE(at::equal(mean.to(kBFloat16).to(kFloat), mean));
            EXPECT_GE(mean.item<float>(), 64.0f);
            EXPECT_LE(mean.item<float>(), 65.0f);
          };
          in_bf16({.param_dtype = kBFloat16});
          in_bf16({.param_dtype = kBFloat16, .reduce_dtype = kBFloat16});
          // A narrower reduction of float32 gradients.
          in_bf16({.reduce_dtype = kBFloat16});
        },
        backend);
  }
}

TEST_P(MixedPrecision, AccumulatesWithoutSyncInTheReduceDtype) {
  run([](const ProcessGroup& world) {
    const auto accumulated = [&](c10::ScalarType reduce_dtype) {
      Scale model(at::ones({4}));
      fully_shard(
          model,
          {.mesh = shard_mesh(world),
           .mp_policy = {
               .param_dtype = kBFloat16, .reduce_dtype = reduce_dtype}});
      for (const double x : {256, 1, 1, 1}) {
        set_requires_gradient_sync(*model, false);
        model(at::full({4}, x, kFloat)).sum().backward();
      }
      set_requires_gradient_sync(*model, true);
      model(at::zeros({4})).sum().backward();
      return model->weight.grad()[0].item<float>();
    };
    // bfloat16 has no 257.
    EXPECT_EQ(accumulated(kFloat), 259.0f);
    EXPECT_EQ(accumulated(kBFloat16), 256.0f);
  });
}

std::vector<double> losses(
    const ProcessGroup& world, const MixedPrecisionPolicy& policy) {
  Stack model;
  model->to(kFloat);
  testing::shard_stack(model, {.mesh = shard_mesh(world), .mp_policy = policy});
  AdamW optimizer(model->parameters(), {.lr = 1e-2});
  std::vector<double> all;
  for (int step = 0; step < 10; ++step) {
    const auto batch = batch_of(world.rank(), world.size());
    const auto loss =
        at::mse_loss(model(batch.x.to(kFloat)).to(kFloat), batch.y.to(kFloat));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    all.push_back(testing::mean_over_ranks(world, loss.item<double>()));
  }
  return all;
}

TEST_P(MixedPrecision, StaysCloseToFloat32AndIsNotIt) {
  run([](const ProcessGroup& world) {
    const auto expected = losses(world, {});
    const auto actual =
        losses(world, {.param_dtype = kBFloat16, .reduce_dtype = kFloat});
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (std::size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(actual[step], expected[step], 1e-2) << step;
      EXPECT_NE(actual[step], expected[step]) << step;
    }
  });
}

struct OddsImpl : torch::nn::Module {
  OddsImpl()
      : fc(register_module("fc", torch::nn::Linear(4, 4))),
        table(register_parameter(
            "table", at::arange(5, at::kLong), /*requires_grad=*/false)),
        mask(register_parameter(
            "mask",
            at::arange(5).remainder(3).ne(1),
            /*requires_grad=*/false)),
        half(register_parameter(
            "half", at::full({3}, 0.25, at::kHalf), /*requires_grad=*/false)) {}
  Tensor forward(const Tensor& x) {
    dtypes = {table.scalar_type(), mask.scalar_type(), half.scalar_type()};
    values = at::cat({table.to(kFloat), mask.to(kFloat), half.to(kFloat)});
    return fc(x);
  }
  torch::nn::Linear fc;
  Tensor table, mask, half;
  std::vector<c10::ScalarType> dtypes;
  Tensor values;
};
FSDP_MODULE(Odds);

TEST_P(MixedPrecision, LeavesParametersThatAreNotFloatingAlone) {
  run([](const ProcessGroup& world) {
    const std::vector<float> values{
        0, 1, 2, 3, 4, 1, 0, 1, 1, 0, 0.25f, 0.25f, 0.25f};
    for (const bool mixed : {false, true}) {
      Odds model;
      FullyShardOptions options{.mesh = shard_mesh(world)};
      if (mixed) {
        options.mp_policy.param_dtype = kBFloat16;
      }
      fully_shard(model, options);
      for (int step = 0; step < 2; ++step) {
        model(at::ones({1, 4})).sum().backward();
        EXPECT_EQ(
            model->dtypes,
            (std::vector{at::kLong, at::kBool, mixed ? kBFloat16 : at::kHalf}));
        EXPECT_TRUE(at::equal(model->values, at::tensor(values)));
      }
      EXPECT_EQ(model->half.scalar_type(), at::kHalf);
      EXPECT_FALSE(model->half.grad().defined());
    }
  });
}

TEST_P(MixedPrecision, FollowsAConversionOfTheModule) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    plain->to(kFloat);
    model->to(kFloat);
    testing::shard_stack(model, world);
    int step = 0;
    // Before the first forward too, and twice to the same.
    for (const auto dtype :
         {at::kDouble, kBFloat16, kFloat, at::kDouble, at::kDouble}) {
      plain->to(dtype);
      model->to(dtype);
      const auto loss = [&](Stack& m, const testing::Batch& batch) {
        const auto y = m(batch.x.to(dtype));
        EXPECT_EQ(y.scalar_type(), dtype);
        return at::mse_loss(y, batch.y.to(dtype));
      };
      for (int repeat = 0; repeat < 2; ++repeat, ++step) {
        loss(plain, whole_batch(step)).backward();
        loss(model, batch_of(world.rank(), size(), step)).backward();
        EXPECT_EQ(model->last->weight.grad().scalar_type(), dtype);
        testing::expect_grads_of(
            *model,
            *plain,
            dtype == kBFloat16 ? 5e-2
            : dtype == kFloat  ? 1e-3
                               : 1e-9);
        plain->zero_grad();
        model->zero_grad();
      }
      if (dtype == kBFloat16) {
        // Rounds both to the same values again.
        testing::expect_params_of(*model, *plain, 0);
      }
    }
  });
}

TEST_P(MixedPrecision, KeepsTheComputeDtypeThroughAConversion) {
  run([](const ProcessGroup& world) {
    Notes model;
    fully_shard(
        model,
        {.mesh = shard_mesh(world),
         .mp_policy = {.param_dtype = kBFloat16, .reduce_dtype = kFloat}});
    for (const auto dtype : {kFloat, at::kDouble, kFloat}) {
      model->to(dtype);
      const Tensor x = at::ones({2, 4});
      model(Sides{x, {{x, 0}}}, at::arange(2), 1.0).hidden.sum().backward();
      EXPECT_EQ(model->weight, kBFloat16);
      EXPECT_EQ(model->fc->weight.scalar_type(), dtype);
      EXPECT_EQ(model->fc->weight.grad().scalar_type(), dtype);
      model->zero_grad();
    }
  });
}

TEST_P(MixedPrecision, FollowsShardsThatWereLoaded) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 3; ++step) {
      c10::AutoGradMode grad_off(false);
      auto params = model->named_parameters();
      for (const auto& info : shard_infos(*model)) {
        const Tensor& whole = plain->named_parameters()[info.name];
        whole.mul_(step == 1 ? 0.5 : 1.5);
        const Tensor rows = whole.narrow(0, info.row_begin, info.num_rows);
        if (step == 1) {
          params[info.name].copy_(rows);
        } else {
          params[info.name].set_data(rows.clone());
        }
      }
      c10::AutoGradMode grad_on(true);
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
    }
    testing::expect_params_of(*model, *plain, 0);
  });
}

TEST(MixedPrecision, RefusesShardsOfAnotherShape) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Scale model(at::ones({4}));
          fully_shard(model, {.mesh = shard_mesh(world)});
          const Tensor shard = model->weight.detach();
          model->weight.set_data(at::ones({4}));
          EXPECT_EQ(
              thrown_text<UsageError>([&] { model(at::ones({4})); }),
              "[rank " + std::to_string(world.rank()) +
                  "] parameter 'weight' of the root unit was replaced by a "
                  "tensor of shape [4], its shard has shape [2]; load or "
                  "assign this rank's rows, or load before fully_shard");
          model->weight.set_data(shard);
          model(at::ones({4})).sum().backward();
          EXPECT_TRUE(at::equal(model->weight.grad(), at::ones({2})));
        },
        backend);
  }
}

TEST(MixedPrecision, RefusesConversionsOfGatheredParameters) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Scale model(at::ones({4}));
          fully_shard(model, {.mesh = shard_mesh(world)});
          model(at::ones({4}));
          EXPECT_EQ(model->weight.numel(), 4);
          model->to(at::kDouble);
          EXPECT_EQ(
              thrown_text<UsageError>([&] { model(at::ones({4})); }),
              "[rank " + std::to_string(world.rank()) +
                  "] parameter 'weight' of the root unit was replaced (by "
                  "to(), a load or set_data) while it was gathered, which "
                  "would be lost; reshard() its unit first");
          model->to(at::kDouble);
          model(at::ones({4}, at::kDouble)).sum().backward();
          EXPECT_TRUE(
              at::equal(model->weight.grad(), at::ones({2}, at::kDouble)));
        },
        backend);
  }
}

} // namespace
} // namespace fsdp
