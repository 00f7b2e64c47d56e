// The exact texts of what cannot work, and that nothing was changed by it.

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include <csignal>
#include <functional>

#include "fsdp/optim.h"
#include "unit/runtime/runtime_test.h"

// One test looks at the signal that ends a process.
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:allow_user_segv_handler=1";
}

namespace fsdp {
namespace {

using at::Tensor;
using testing::Block;
using ::testing::HasSubstr;
using testing::Scale;
using testing::shard_mesh;
using testing::Stack;
using testing::thrown_text;
using testing::with_ranks;

std::string rank_text(const ProcessGroup& world) {
  return "[rank " + std::to_string(world.rank()) + "] ";
}

/// The text of the UsageError with which fully_shard refuses `module`, whose
/// parameters it leaves as they were.
std::string refusal(
    const std::shared_ptr<torch::nn::Module>& module,
    const FullyShardOptions& options) {
  struct Before {
    Tensor param, value;
  };
  std::vector<Before> all;
  for (const auto& param : module->parameters()) {
    all.push_back({param, param.detach().clone()});
    if (param.requires_grad()) {
      param.mutable_grad() = at::ones_like(param);
    }
  }
  const bool was_sharded = is_fully_sharded(*module);
  const auto text =
      thrown_text<UsageError>([&] { fully_shard(module, options); });
  EXPECT_EQ(is_fully_sharded(*module), was_sharded);
  for (const auto& [param, value] : all) {
    EXPECT_EQ(param.sizes(), value.sizes());
    EXPECT_TRUE(at::equal(param, value));
    EXPECT_EQ(param.grad().defined(), param.requires_grad());
  }
  for (const auto& before : all) { // a tied parameter is there twice
    before.param.mutable_grad().reset();
  }
  return text;
}

/// Any one parameter.
struct OneImpl : torch::nn::Module {
  explicit OneImpl(const Tensor& value, bool requires_grad = true)
      : w(register_parameter("w", value, requires_grad)) {}
  Tensor forward(const Tensor& x) { return (w * x).sum(); }
  Tensor w;
};
FSDP_MODULE(One);

TEST(FullyShard, RefusesModulesWithoutHooks) {
  with_ranks(2, [](const ProcessGroup& world) {
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    const std::string advice =
        "' has no hooks around its forward; declare it with FSDP_MODULE(Name) "
        "in place of TORCH_MODULE(Name), hold a stock module as "
        "fsdp::HookedHolder<torch::nn::LinearImpl>, and shard the elements of "
        "a container, not the container";
    torch::nn::Linear linear(2, 3);
    EXPECT_EQ(
        refusal(linear.ptr(), options),
        "fully_shard: module 'torch::nn::LinearImpl" + advice);
    torch::nn::ModuleList list(linear);
    EXPECT_EQ(
        refusal(list.ptr(), options),
        "fully_shard: module 'torch::nn::ModuleListImpl" + advice);
    linear(at::ones({1, 2})).sum().backward();
    EXPECT_TRUE(at::equal(linear->weight.grad(), at::ones({3, 2})));
  });
}

TEST(FullyShard, RefusesASecondCallOnOneModule) {
  with_ranks(2, [](const ProcessGroup& world) {
    Scale model(at::ones({4}));
    fully_shard(model, {.mesh = shard_mesh(world)});
    EXPECT_EQ(
        refusal(model.ptr(), {.mesh = shard_mesh(world)}),
        "fully_shard was already applied to this module "
        "('fsdp::testing::Scale'); apply it once");
    model(at::ones({4})).sum().backward();
    EXPECT_TRUE(at::equal(model->weight.grad(), at::ones({2})));
  });
}

TEST(FullyShard, RefusesAChildAfterItsParent) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    fully_shard(model, options);
    EXPECT_EQ(
        refusal(model->blocks[0], options),
        "fully_shard: parameter 'in.weight' already belongs to another unit "
        "(parameter 'blocks.0.in.weight' of the root unit): call fully_shard "
        "on inner modules before outer ones, and tie parameters inside one "
        "unit only");
  });
}

struct SharingImpl : torch::nn::Module {
  SharingImpl()
      : a(register_module("a", Scale(at::ones({4})))),
        b(register_module("b", Scale(at::ones({4})))) {
    b->weight = b->register_parameter("shared", a->weight);
  }
  Tensor forward(const Tensor& x) { return b(a(x)); }
  Scale a;
  Scale b;
};
FSDP_MODULE(Sharing);

TEST(FullyShard, RefusesAParameterThatTwoUnitsReach) {
  with_ranks(2, [](const ProcessGroup& world) {
    Sharing model;
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    fully_shard(model->a, options);
    const std::string text =
        "already belongs to another unit (parameter 'weight' of the root "
        "unit): call fully_shard on inner modules before outer ones, and tie "
        "parameters inside one unit only";
    EXPECT_EQ(
        refusal(model->b.ptr(), options),
        "fully_shard: parameter 'shared' " + text);
    EXPECT_EQ(
        refusal(model.ptr(), options),
        "fully_shard: parameter 'b.shared' " + text);
  });
}

// B61 and its like.
TEST(FullyShard, RefusesParametersThatCannotBeSharded) {
  with_ranks(2, [](const ProcessGroup& world) {
    const FullyShardOptions options{.mesh = shard_mesh(world)};
    One scalar(at::full({}, 2.0f));
    EXPECT_EQ(
        refusal(scalar.ptr(), options),
        "fully_shard: parameter 'w' has no dimension to shard; make it a "
        "tensor of one element, shape [1]");
    scalar(at::full({}, 3.0f)).backward();
    EXPECT_EQ(scalar->w.grad().item<float>(), 3.0f);

    EXPECT_EQ(
        refusal(One(at::ones({3, 4}).t()).ptr(), options),
        "fully_shard: parameter 'w' is not contiguous; register "
        "param.contiguous() instead");
    EXPECT_EQ(
        refusal(One(at::ones({3}, at::kComplexFloat)).ptr(), options),
        "fully_shard: parameter 'w' of dtype complex64 requires grad, and "
        "gradients of that dtype cannot be averaged; use a real floating "
        "dtype or set_requires_grad(false)");
    EXPECT_EQ(
        refusal(
            One(at::quantize_per_tensor(at::ones({3}), 0.1, 0, at::kQInt8),
                false)
                .ptr(),
            options),
        "fully_shard: parameter 'w' of dtype QInt8 cannot be sharded; keep it "
        "as a buffer");
  });
}

struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : a(register_parameter("a", at::ones({4}))),
        b(register_parameter("b", at::ones({4}, at::kDouble))),
        c(register_parameter(
            "c", at::ones({4}, at::kHalf), /*requires_grad=*/false)) {}
  Tensor forward(const Tensor& x) { return a * x + b + c; }
  Tensor a, b, c;
};
FSDP_MODULE(Mixed);

TEST(FullyShard, RefusesTrainableParametersOfTwoDtypes) {
  with_ranks(2, [](const ProcessGroup& world) {
    Mixed model;
    EXPECT_EQ(
        refusal(model.ptr(), {.mesh = shard_mesh(world)}),
        "fully_shard: the trainable parameters of one unit must have one "
        "dtype: 'a' is Float, 'b' is Double; convert one, or make them "
        "separate units");
    model(at::ones({4})).sum().backward();
    EXPECT_EQ(model->a.grad().numel(), 4);
    model->zero_grad();
    model->b.set_requires_grad(false);
    fully_shard(model, {.mesh = shard_mesh(world)});
    model(at::ones({4})).sum().backward();
    EXPECT_TRUE(at::equal(model->a.grad(), at::ones({2})));
  });
}

TEST(FullyShard, RefusesOptionsOutOfRange) {
  with_ranks(4, [](const ProcessGroup& world) {
    const auto model = Scale(at::ones({4})).ptr();
    EXPECT_EQ(
        refusal(model, {}),
        "fully_shard: no mesh; pass {.mesh = fsdp::init_device_mesh(...)}");
    EXPECT_EQ(
        refusal(model, {.mesh = init_device_mesh(world, "cpu", {2, 2})}),
        "fully_shard: the mesh has 2 axes; pass a mesh of one axis");
    const auto with_policy = [&](const MixedPrecisionPolicy& policy) {
      return refusal(model, {.mesh = shard_mesh(world), .mp_policy = policy});
    };
    const std::string advice =
        "; it must be float32, float64, bfloat16 or float16";
    EXPECT_EQ(
        with_policy({.param_dtype = at::kLong}),
        "fully_shard: mp_policy.param_dtype is Long" + advice);
    EXPECT_EQ(
        with_policy({.reduce_dtype = at::kBool}),
        "fully_shard: mp_policy.reduce_dtype is Bool" + advice);
    EXPECT_EQ(
        with_policy({.output_dtype = at::kComplexFloat}),
        "fully_shard: mp_policy.output_dtype is ComplexFloat" + advice);
  });
}

TEST(FullyShard, RefusesANestedUnitOfAnotherMesh) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    const auto other = world.split({0, 1}, "other");
    fully_shard(model->blocks[0], {.mesh = shard_mesh(other)});
    EXPECT_EQ(
        refusal(model.ptr(), {.mesh = shard_mesh(world)}),
        "fully_shard: nested unit 'blocks.0' was sharded over another mesh; "
        "use one mesh for a whole model");
  });
}

TEST(Units, AreAskedForWhereThereAreNone) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    const std::string name = "module 'fsdp::testing::Stack'";
    const std::string not_called = ": fully_shard was not called on " + name;
    const std::string none =
        ": no unit in " + name + " or below it; call fully_shard first";
    EXPECT_EQ(
        thrown_text<UsageError>([&] { unshard(*model); }),
        "unshard" + not_called);
    EXPECT_EQ(
        thrown_text<UsageError>([&] { reshard(*model); }),
        "reshard" + not_called);
    EXPECT_EQ(
        thrown_text<UsageError>(
            [&] { set_requires_gradient_sync(*model, false); }),
        "set_requires_gradient_sync" + none);
    EXPECT_EQ(
        thrown_text<UsageError>(
            [&] { set_reshard_after_forward(*model, false); }),
        "set_reshard_after_forward" + none);
    EXPECT_EQ(
        thrown_text<UsageError>([&] { set_prefetch_depth(*model, 1); }),
        "set_prefetch_depth" + none);
    EXPECT_EQ(
        thrown_text<UsageError>([&] { set_unit_observer(*model, {}); }),
        "set_unit_observer" + none);
    testing::shard_stack(model, world);
    EXPECT_EQ(
        thrown_text<UsageError>([&] {
          set_requires_gradient_sync(*model->last, false, /*recurse=*/false);
        }),
        "set_requires_gradient_sync: fully_shard was not called on module "
        "'torch::nn::LinearImpl'");
    EXPECT_EQ(
        thrown_text<UsageError>([&] { set_prefetch_depth(*model, -1); }),
        "set_prefetch_depth: depth is -1; it must be 0 or more");
  });
}

TEST(Units, CannotBeCloned) {
  with_ranks(2, [](const ProcessGroup& world) {
    Block block;
    fully_shard(block, {.mesh = shard_mesh(world)});
    EXPECT_EQ(
        thrown_text<UsageError>([&] { block->clone(); }),
        "clone() of hooked module 'fsdp::testing::Block' would lose its "
        "hooks; construct a new module and copy its parameters");
  });
}

/// What is thrown by a use of 'weight' past the hooks of the root unit.
std::string not_gathered(const ProcessGroup& world, const char* parameter) {
  return rank_text(world) + "parameter '" + parameter +
         "' of the root unit is used while it is not gathered: outside its "
         "unit's "
         "forward and backward, or past the unit's hooks; call the unit "
         "through "
         "its holder, or unshard() it first";
}

TEST(Hooks, ThatWereBypassedAreNoticedInTheBackward) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    for (const bool after_a_step : {false, true}) {
      // One row each as well: the gradient would fit any number of rows.
      for (const std::int64_t rows : {8, 2}) {
        with_ranks(
            size,
            [&](const ProcessGroup& world) {
              Scale model(at::ones({rows, 3}));
              fully_shard(model, {.mesh = shard_mesh(world)});
              const Tensor x = at::ones({rows, 3});
              const auto good_step = [&] {
                model(x).sum().backward();
                EXPECT_TRUE(
                    at::equal(model->weight.grad(), at::ones({rows / 2, 3})));
                model->zero_grad();
              };
              if (after_a_step) {
                good_step();
              }
              testing::ScaleImpl& impl = *model;
              const auto loss = impl.forward(at::ones({rows / 2, 3})).sum();
              EXPECT_EQ(
                  thrown_text<UsageError>([&] { loss.backward(); }),
                  not_gathered(world, "weight"));
              EXPECT_FALSE(model->weight.grad().defined());
              good_step();
            },
            backend);
      }
    }
  }
}

TEST(Hooks, ThatWereBypassedByAGatheredUnitAreNoticedInTheBackward) {
  with_ranks(2, [](const ProcessGroup& world) {
    Scale model(at::ones({4}));
    fully_shard(model, {.mesh = shard_mesh(world)});
    unshard(*model);
    testing::ScaleImpl& impl = *model;
    const auto loss = impl.forward(at::ones({4})).sum();
    EXPECT_EQ(
        thrown_text<UsageError>([&] { loss.backward(); }),
        rank_text(world) +
            "a gradient came for the root unit, whose forward was called past "
            "its hooks; call it through its holder (block(x), "
            "block->forward(x)), or as Block::Impl where its Impl is named");
    model(at::ones({4})).sum().backward();
    EXPECT_TRUE(at::equal(model->weight.grad(), at::ones({2})));
  });
}

struct LeaksImpl : torch::nn::Module {
  LeaksImpl() : weight(register_parameter("weight", at::ones({4, 2}))) {}
  Tensor forward(const Tensor& x) {
    leaked = weight.t();
    return at::linear(x, weight);
  }
  Tensor weight;
  Tensor leaked;
};
FSDP_MODULE(Leaks);

TEST(Parameters, ReadWhileNotGatheredSayWhich) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Leaks model;
          fully_shard(
              model,
              {.mesh = shard_mesh(world), .reshard_after_forward = true});
          for (int step = 0; step < 2; ++step) {
            c10::AutoGradMode grad_off(false);
            model(at::ones({1, 2}));
            for (const auto& read : std::vector<std::function<void()>>{
                     [&] { at::sum(model->leaked); },
                     [&] { model->leaked.clone(); },
                     [&] {
                       at::mm(at::ones({1, 2}), model->leaked);
                     }}) {
              EXPECT_EQ(
                  thrown_text<c10::Error>(read), not_gathered(world, "weight"));
            }
          }
        },
        backend);
  }
}

TEST(Gradients, ThatAreSparseAreRefused) {
  for (const auto& [backend, size] : testing::two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          HookedHolder<torch::nn::EmbeddingImpl> model(
              torch::nn::EmbeddingOptions(6, 2).sparse(true));
          fully_shard(model, {.mesh = shard_mesh(world)});
          const auto loss = model(at::arange(3, at::kLong)).sum();
          EXPECT_EQ(
              thrown_text<UsageError>([&] { loss.backward(); }),
              rank_text(world) +
                  "parameter 'weight' of the root unit has a sparse gradient, "
                  "which cannot be reduced; make the embedding with "
                  "sparse(false)");
          EXPECT_EQ(model->weight.size(0), 3);
        },
        backend);
  }
}

TEST(Gradients, OfChosenParametersAreRefused) {
  with_ranks(2, [](const ProcessGroup& world) {
    Stack model;
    testing::shard_stack(model, world);
    const std::string text =
        "autograd::grad() and backward(inputs) cannot give the gradient of a "
        "sharded parameter; call backward() without inputs and read .grad";
    const Tensor& gathered = model->last->weight;
    const Tensor& released = model->blocks[0]->as<Block>()->in->weight;
    for (const Tensor& chosen : {gathered, released}) {
      const auto loss = loss_of(model, testing::batch_of(world.rank(), 2));
      EXPECT_EQ(
          thrown_text<UsageError>(
              [&] { torch::autograd::grad({loss}, {chosen}); }),
          text);
      EXPECT_EQ(
          thrown_text<UsageError>(
              [&] { loss.backward({}, false, false, {{chosen}}); }),
          text);
      loss.backward();
      EXPECT_TRUE(chosen.grad().defined());
      model->zero_grad();
    }
  });
}

TEST(Optimizers, RefuseGatheredParameters) {
  with_ranks(2, [](const ProcessGroup& world) {
    Scale model(at::ones({4}));
    fully_shard(model, {.mesh = shard_mesh(world)});
    SGD optimizer(model->parameters(), {.lr = 0.1});
    model(at::ones({4})).sum().backward();
    model(at::ones({4}));
    EXPECT_THAT(
        thrown_text<UsageError>([&] { optimizer.step(); }),
        HasSubstr(
            "parameter 'weight' of the root unit is gathered, expected this "
            "rank's shard: call reshard()"));
    reshard(*model);
    optimizer.step();
    EXPECT_TRUE(at::allclose(model->weight, at::full({2}, 0.9)));
  });
}

// A death test runs this program again.
class WriteToAGatheredParameter : public ::testing::TestWithParam<std::string> {
};
INSTANTIATE_TEST_SUITE_P(
    Backends,
    WriteToAGatheredParameter,
    ::testing::Values("inproc", "gloo"),
    [](const auto& backend) { return backend.param; });

TEST_P(WriteToAGatheredParameter, EndsTheProcessAfterOneLineThatNamesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      with_ranks(
          2,
          [](const ProcessGroup& world) {
            Stack model;
            testing::shard_stack(model, world);
            // A block of the same size has had the memory before.
            unshard(*model->blocks[0]);
            reshard(*model->blocks[0]);
            const auto block = model->blocks[1]->as<Block>();
            unshard(*block);
            c10::AutoGradMode grad_off(false);
            block->in->bias.mul_(0.5);
          },
          GetParam()),
      ::testing::KilledBySignal(SIGSEGV),
      ".*write to a gathered parameter: parameter 'in.bias' of unit "
      "'blocks.1'; all ranks of this host read the same copy of it, so it is "
      "read-only: write to the sharded parameter, outside of forward and "
      "backward");
}

} // namespace
} // namespace fsdp
