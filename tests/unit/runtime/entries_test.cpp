// What a forward or an unshard() publishes, and what becomes of units that run
// where the tree did not expect them.

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>

#include <chrono>

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
using testing::two_engines;
using testing::whole_batch;
using testing::with_ranks;

class Entries : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Entries,
    ::testing::ValuesIn(testing::all_ranks()),
    testing::name_of_ranks);

/// Runs blocks that belong to another module.
struct BorrowerImpl : torch::nn::Module {
  explicit BorrowerImpl(std::shared_ptr<torch::nn::Module> lent)
      : own(register_module("own", Block())), borrowed(std::move(lent)) {
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) {
    return own(borrowed->as<Block>()->forward(own(x)));
  }
  Block own;
  std::shared_ptr<torch::nn::Module> borrowed; // not below this one
};
FSDP_MODULE(Borrower);

struct LendersImpl : torch::nn::Module {
  LendersImpl()
      : lent(register_module("lent", Block())),
        borrower(register_module("borrower", Borrower(lent.ptr()))) {
    testing::fill_distinct(*this);
    to(at::kDouble);
  }
  Tensor forward(const Tensor& x) { return borrower(lent(x)); }
  Block lent;
  Borrower borrower;
};
FSDP_MODULE(Lenders);

void shard(Lenders& model, const ProcessGroup& world) {
  const FullyShardOptions options{.mesh = shard_mesh(world)};
  fully_shard(model->lent, options);
  fully_shard(model->borrower, options);
  fully_shard(model, options);
}

// The forward of `borrower` alone reaches a unit that is not below it. It must
// compute with what the optimizer has just written, the first time and later.
TEST_P(Entries, PublishAUnitThatIsNotBelowTheForwardsModule) {
  run([this](const ProcessGroup& world) {
    Lenders plain;
    Lenders model;
    shard(model, world);
    for (int step = 0; step < 3; ++step) {
      plain->borrower(rows_of(0, 1)).square().mean().backward();
      model->borrower(rows_of(world.rank(), size())).square().mean().backward();
      testing::expect_grads_of(*model, *plain);
      testing::sgd_step(*plain);
      testing::sgd_step(*model);
      testing::expect_params_of(*model, *plain);
      plain->zero_grad();
      model->zero_grad();
    }
  });
}

TEST_P(Entries, PublishAUnitThatIsUnshardedInsideAForward) {
  run([this](const ProcessGroup& world) {
    Lenders plain;
    Lenders model;
    shard(model, world);
    for (int step = 0; step < 2; ++step) {
      testing::sgd_step(*model);
      testing::sgd_step(*plain);
      run_unit(model->borrower, [&] {
        unshard(*model->lent);
        EXPECT_TRUE(at::allclose(
            model->lent->in->weight, plain->lent->in->weight, 1e-12, 1e-12));
        return at::ones({1});
      });
      reshard(*model->lent);
      plain->borrower(rows_of(0, 1)).square().mean().backward();
      model->borrower(rows_of(world.rank(), size())).square().mean().backward();
    }
  });
}

TEST(Entries, ThatFailOnOneRankAreToldToTheOthers) {
  for (const auto& [backend, size] : two_engines(3)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Stack model;
          testing::shard_stack(model, world);
          auto weight = model->first->weight;
          const Tensor shard = weight.detach().clone();
          if (world.rank() == 1) {
            weight.set_data(at::zeros({5}, at::kDouble));
          }
          const auto begin = std::chrono::steady_clock::now();
          if (world.rank() == 1) {
            EXPECT_THAT(
                thrown_text<UsageError>([&] { unshard(*model); }),
                HasSubstr("was replaced by a tensor of shape [5]"));
            weight.set_data(shard);
          } else {
            EXPECT_THAT(
                thrown_text<PeerError>([&] { unshard(*model); }),
                HasSubstr(
                    "rank 1 failed: in unshard() of the root unit: parameter "
                    "'first.weight' of the root unit was replaced"));
          }
          EXPECT_LT(
              std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(5));
          Stack plain;
          loss_of(plain, whole_batch()).backward();
          loss_of(model, batch_of(world.rank(), world.size())).backward();
          testing::expect_grads_of(*model, *plain);
        },
        backend);
  }
}

/// Activation checkpointing of one module: its forward runs again in the
/// backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x,
      Block* block) {
    context->save_for_backward({x});
    context->saved_data["block"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(block));
    return (*block)(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    auto& block = *reinterpret_cast<Block*>(
        static_cast<std::intptr_t>(context->saved_data["block"].toInt()));
    c10::AutoGradMode grad_on(true);
    const Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({block(x)}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

TEST(Entries, ARecomputedUnitIsReleasedWithTheBackwardTrainableOrFrozen) {
  for (const bool is_frozen : {false, true}) {
    for (const auto& [backend, size] : two_engines(2)) {
      with_ranks(
          size,
          [&](const ProcessGroup& world) {
            Block plain;
            Block block;
            for (Block* each : {&plain, &block}) {
              testing::fill_distinct(**each);
              (*each)->to(at::kDouble);
              for (const auto& param : (*each)->parameters()) {
                param.requires_grad_(!is_frozen);
              }
            }
            fully_shard(block, {.mesh = shard_mesh(world)});
            const auto input_grad = [](Block& each, const Tensor& rows) {
              const Tensor x = rows.clone().requires_grad_();
              Checkpoint::apply(x * 1, &each).square().mean().backward();
              return x.grad();
            };
            const Tensor all = input_grad(plain, rows_of(0, 1));
            const Tensor own =
                input_grad(block, rows_of(world.rank(), world.size()));
            EXPECT_TRUE(at::allclose(
                own / world.size(),
                all.narrow(0, world.rank() * own.size(0), own.size(0)),
                1e-12,
                1e-12));
            testing::expect_grads_of(*block, *plain);
            EXPECT_FALSE(is_full(*block, "in.weight")) << backend;
          },
          backend);
    }
  }
}

} // namespace
} // namespace fsdp
