// What must hold across the border of the shared library: one type of each
// error, one type of each base that is asked for by dynamic_cast.

#include <gmock/gmock.h>

#include <cmath>

#include <torch/nn/modules/linear.h>

#include "fsdp/clip_grad.h"
#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "fsdp/optim.h"
#include "fsdp/process_group.h"

namespace {

using Linear = fsdp::HookedHolder<torch::nn::LinearImpl>;

template <typename Thrown, typename Call>
std::string text_of(Call&& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(SharedLibrary, ItsErrorsAreCaughtByTheirOwnType) {
  fsdp::ProcessGroup world = fsdp::init_process_group();
  const auto bad_mesh = [&] { fsdp::init_device_mesh(world, "cpu", {2}); };
  EXPECT_THAT(text_of<fsdp::UsageError>(bad_mesh), testing::HasSubstr("2"));
  EXPECT_THAT(
      text_of<fsdp::ConfigError>(
          [] { fsdp::init_process_group({.backend = "none"}); }),
      testing::HasSubstr("none"));
  EXPECT_EQ(
      text_of<fsdp::UsageError>(bad_mesh), text_of<fsdp::Error>(bad_mesh));
}

TEST(SharedLibrary, AnErrorOfTheProgramIsToldToTheOtherRanks) {
  std::string heard;
  const auto body = [&heard](fsdp::ProcessGroup world) {
    if (world.rank() == 1) {
      throw fsdp::UsageError("the program's own");
    }
    heard = text_of<fsdp::PeerError>([&world] { world.barrier(); });
  };
  EXPECT_EQ(
      text_of<fsdp::UsageError>([&] { fsdp::run_ranks(2, body); }),
      "the program's own");
  EXPECT_THAT(heard, testing::HasSubstr("the program's own"));
}

TEST(SharedLibrary, HooksOfTheProgramsModulesAreFoundAndCalled) {
  fsdp::run_ranks(2, [](fsdp::ProcessGroup world) {
    const auto mesh = fsdp::init_device_mesh(world, "cpu", {world.size()});
    Linear layer(6, 4);
    {
      const at::NoGradGuard no_grad;
      layer->weight.fill_(2.0);
      layer->bias.zero_();
    }
    fsdp::fully_shard(layer, {.mesh = mesh});
    EXPECT_EQ(layer->weight.size(0), 2); // rows of 4, of two ranks
    fsdp::SGD optimizer(layer->parameters(), {.lr = 0.5});
    const at::Tensor output = layer(at::ones({3, 6}));
    EXPECT_TRUE(at::equal(output, at::full({3, 4}, 12.0)));
    output.sum().backward();
    EXPECT_NEAR(
        fsdp::clip_grad_norm_(*layer, 1e9), std::sqrt(24 * 9 + 4 * 9), 1e-5);
    optimizer.step();
    EXPECT_TRUE(at::equal(layer->weight, at::full({2, 6}, 0.5)));
  });
}

TEST(SharedLibrary, AModuleWithoutHooksIsNamed) {
  fsdp::ProcessGroup world = fsdp::init_process_group();
  const auto mesh = fsdp::init_device_mesh(world, "cpu", {1});
  torch::nn::Linear plain(2, 2);
  EXPECT_THAT(
      text_of<fsdp::UsageError>(
          [&] { fsdp::fully_shard(plain, {.mesh = mesh}); }),
      testing::HasSubstr("hooks"));
}

} // namespace
