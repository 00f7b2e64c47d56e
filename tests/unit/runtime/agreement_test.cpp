// Ranks that mean different parameters, or different models, find out before
// any number is wrong.

#include "unit/runtime/runtime_test.h"

namespace fsdp {
namespace {

using at::Tensor;
using testing::batch_of;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::shard_mesh;
using testing::Stack;
using testing::thrown_text;
using testing::two_engines;
using testing::with_ranks;

struct NamedImpl : torch::nn::Module {
  void add(const std::string& name, const Tensor& value, bool train = true) {
    register_parameter(name, value, train);
  }
  Tensor forward(const Tensor& x) { return x; }
};
FSDP_MODULE(Named);

using Fill = void (*)(Named& model, bool other);

/// What each of three ranks gets to see when rank 1 has other parameters.
void expect_mismatch(
    Fill fill, const std::string& ours, const std::string& its) {
  SCOPED_TRACE(ours);
  for (const auto& [backend, size] : two_engines(3)) {
    with_ranks(
        size,
        [&](const ProcessGroup& world) {
          Named model;
          fill(model, world.rank() == 1);
          EXPECT_EQ(
              thrown_text<MismatchError>(
                  [&] { fully_shard(model, {.mesh = shard_mesh(world)}); }),
              "[rank " + std::to_string(world.rank()) +
                  "] ranks met with different requests: rank 0 asks for "
                  "fully_shard for " +
                  ours + ", rank 1 for fully_shard for " + its +
                  "; every rank must issue the same calls in the same order");
          for (const auto& param : model->parameters()) {
            EXPECT_EQ(param.size(0), 4) << "nothing was changed";
          }
        },
        backend);
  }
}

TEST(Agreement, NamesTheFirstParameterThatDiffers) {
  expect_mismatch(
      [](Named& model, bool other) {
        model->add(other ? "b" : "a", at::zeros({4, 3}));
        model->add(other ? "a" : "b", at::ones({4, 3}));
      },
      "parameter 'a', float32 [4, 3]",
      "parameter 'b', float32 [4, 3]");
  expect_mismatch(
      [](Named& model, bool other) {
        model->add("a", at::zeros({4, 3}));
        model->add("b", other ? at::zeros({4, 6}) : at::zeros({4, 2}));
      },
      "parameter 'b', float32 [4, 2]",
      "parameter 'b', float32 [4, 6]");
  expect_mismatch(
      [](Named& model, bool other) {
        model->add("a", at::zeros({4}, other ? at::kInt : at::kFloat), false);
      },
      "parameter 'a', float32 [4], frozen",
      "parameter 'a', int32 [4], frozen");
  expect_mismatch(
      [](Named& model, bool other) { model->add("a", at::zeros({4}), other); },
      "parameter 'a', float32 [4], frozen",
      "parameter 'a', float32 [4]");
  expect_mismatch(
      [](Named& model, bool other) {
        model->add("a", at::zeros({4}));
        if (other) {
          model->add("b", at::zeros({4}));
        }
      },
      "a unit without further 'parameters'",
      "parameter 'b', float32 [4]");
}

TEST(Agreement, AMistakeOfOneRankIsToldToTheOthers) {
  for (const auto& [backend, size] : two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Named model;
          model->add("a", world.rank() == 1 ? at::zeros({}) : at::zeros({4}));
          const auto shard = [&] {
            fully_shard(model, {.mesh = shard_mesh(world)});
          };
          if (world.rank() == 1) {
            EXPECT_THAT(
                thrown_text<UsageError>(shard),
                HasSubstr("has no dimension to shard"));
          } else {
            EXPECT_THAT(
                thrown_text<PeerError>(shard),
                HasSubstr("rank 1 failed: fully_shard: parameter 'a' has no"));
          }
          world.barrier();
        },
        backend);
  }
}

TEST(Agreement, TellsTwoModelsOfOneStructureApart) {
  for (const auto& [backend, size] : two_engines(2)) {
    with_ranks(
        size,
        [](const ProcessGroup& world) {
          Stack models[2];
          for (Stack& model : models) {
            testing::shard_stack(model, world);
          }
          const auto forward = [&](int i) {
            return loss_of(models[i], batch_of(world.rank(), 2));
          };
          const std::string text =
              thrown_text<MismatchError>([&] { forward(world.rank()); });
          EXPECT_THAT(
              text,
              HasSubstr(
                  "rank 0 asks for forward(with grad) for 'the root unit' of "
                  "model 4, rank 1 for forward(with grad) for 'the root unit' "
                  "of model 8"));
          const Tensor first = forward(0);
          const Tensor second = forward(1);
          EXPECT_THROW((world.rank() == 0 ? first : second).backward(), Error);
          forward(1).backward();
        },
        backend);
  }
}

} // namespace
} // namespace fsdp
