// Programs that use units in other ways than a plain training loop does.

#include <thread>

#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using testing::Block;
using ::testing::HasSubstr;
using testing::is_full;
using testing::loss_of;
using testing::OnRanks;
using testing::rows_of;
using testing::shard_mesh;
using testing::Stack;
using testing::thrown_text;
using testing::whole_batch;

class OddUses : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    OddUses,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

/// A world of one cannot tell by the shape.
void expect_sharded(const torch::nn::Module& model, const std::string& name) {
  const auto infos = shard_infos(model);
  if (infos.front().num_rows < infos.front().full_sizes[0]) {
    EXPECT_FALSE(is_full(model, name)) << name;
  }
}

/// What `call` throws in a thread of its own is thrown here.
void on_another_thread(const std::function<void()>& call) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) {
    std::rethrow_exception(error);
  }
}

TEST_P(OddUses, ABackwardMayRunOnAnotherThreadThanItsForward) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    testing::shard_stack(model, world);
    for (int step = 0; step < 3; ++step) {
      loss_of(plain, whole_batch(step)).backward();
      Tensor loss;
      const auto forward = [&] {
        loss = loss_of(model, batch_of(world.rank(), size(), step));
      };
      const auto backward = [&] { loss.backward(); };
      if (step == 1) {
        on_another_thread(forward);
        backward();
      } else {
        forward();
        on_another_thread(backward);
      }
      testing::expect_grads_of(*model, *plain);
      expect_sharded(*model, "first.weight");
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
    }
  });
}

TEST_P(OddUses, AFrozenUnitThatStaysGatheredMayBeUnfrozen) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    const auto set_frozen = [&](bool is_frozen) {
      for (Stack* each : {&plain, &model}) {
        for (const auto& param : (*each)->blocks[0]->parameters()) {
          param.requires_grad_(!is_frozen);
        }
      }
    };
    set_frozen(true);
    const FullyShardOptions options{
        .mesh = shard_mesh(world), .reshard_after_forward = false};
    testing::shard_stack(model, options);
    for (int step = 0; step < 4; ++step) {
      set_frozen(step % 2 == 0);
      loss_of(plain, whole_batch(step)).backward();
      loss_of(model, batch_of(world.rank(), size(), step)).backward();
      testing::expect_grads_of(*model, *plain);
      expect_sharded(*model, "blocks.0.in.weight");
      plain->zero_grad();
      model->zero_grad();
    }
  });
}

TEST_P(OddUses, AModelThatWasFrozenAltogetherMayBeUnfrozen) {
  run([this](const ProcessGroup& world) {
    Stack plain;
    Stack model;
    const auto set_frozen = [](Stack& each, bool is_frozen) {
      for (const auto& param : each->parameters()) {
        param.requires_grad_(!is_frozen);
      }
    };
    set_frozen(model, true);
    testing::shard_stack(model, world);
    loss_of(model, batch_of(world.rank(), size())); // no backward follows
    set_frozen(model, false);
    loss_of(plain, whole_batch()).backward();
    loss_of(model, batch_of(world.rank(), size())).backward();
    testing::expect_grads_of(*model, *plain);
  });
}

/// Its forward calls itself.
struct NestedImpl : torch::nn::Module {
  NestedImpl() : block(register_module("block", Block())) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x, int depth) {
    const Tensor inner = depth > 0 ? again(x, depth - 1) : x;
    return block(inner);
  }
  std::function<Tensor(const Tensor&, int)> again;
  Block block;
};
FSDP_MODULE(Nested);

TEST_P(OddUses, AUnitMayCallItself) {
  run([this](const ProcessGroup& world) {
    Nested plain;
    Nested model;
    for (Nested* each : {&plain, &model}) {
      (*each)->again = [each](const Tensor& x, int depth) {
        return (*each)(x, depth);
      };
    }
    for (const bool reshard : {true, false}) {
      if (!is_fully_sharded(*model)) {
        fully_shard(model, {.mesh = shard_mesh(world)});
      }
      set_reshard_after_forward(*model, reshard);
      const auto rows = rows_of(0, 1);
      const auto own = rows_of(world.rank(), size());
      plain(rows, 2).square().mean().backward();
      model(own, 2).square().mean().backward();
      testing::expect_grads_of(*model, *plain);
      expect_sharded(*model, "block.in.weight");
      plain->zero_grad();
      model->zero_grad();
    }
  });
}

/// One block as every layer of a network.
struct RepeatedImpl : torch::nn::Module {
  RepeatedImpl() : block(register_module("block", Block())) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(Tensor x) {
    for (int layer = 0; layer < 4; ++layer) {
      x = block(x);
    }
    return x;
  }
  Block block;
};
FSDP_MODULE(Repeated);

TEST_P(OddUses, AUnitMayFollowItself) {
  run([this](const ProcessGroup& world) {
    Repeated plain;
    Repeated model;
    fully_shard(model->block, {.mesh = shard_mesh(world)});
    fully_shard(model, {.mesh = shard_mesh(world)});
    const auto rows = rows_of(0, 1);
    const auto own = rows_of(world.rank(), size());
    for (int step = 0; step < 3; ++step) {
      plain(rows).square().mean().backward();
      model(own).square().mean().backward();
      testing::expect_grads_of(*model, *plain);
      expect_sharded(*model, "block.in.weight");
      plain->zero_grad();
      model->zero_grad();
    }
  });
}

TEST_P(OddUses, ReshardInsideTheForwardIsRefused) {
  run([](const ProcessGroup& world) {
    Nested model;
    model->again = [&](const Tensor& x, int) {
      reshard(*model);
      return x;
    };
    fully_shard(model, {.mesh = shard_mesh(world)});
    EXPECT_THAT(
        thrown_text<Error>([&] {
          model(at::ones({1, 6}, at::kDouble), 1);
        }),
        HasSubstr(
            "reshard: the forward of the root unit is running and needs its "
            "parameters; call it afterwards"));
  });
}

TEST_P(OddUses, ABackwardThroughADestroyedModelSaysSo) {
  run([](const ProcessGroup& world) {
    Tensor loss;
    {
      Stack model;
      testing::shard_stack(model, world);
      loss = loss_of(model, batch_of(world.rank(), world.size()));
    }
    EXPECT_EQ(
        thrown_text<UsageError>([&] { loss.backward(); }),
        "backward through the root unit, whose module has been destroyed: keep "
        "the model until the backward of its loss is over");
  });
}

} // namespace
} // namespace fsdp
