#include "fsdp/device_mesh.h"

#include <gmock/gmock.h>

#include "comm/communicator.h"
#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;

template <class Action>
std::string refusal(Action action) {
  return testing::thrown_text<UsageError>(action);
}

int sum_of_ranks(const ProcessGroup& group, int rank) {
  std::int64_t sum = rank;
  group.communicator().all_reduce(
      &sum, 1, DType::kInt64, ReduceOp::kSum, "ranks");
  return static_cast<int>(sum);
}

TEST(DeviceMesh, OfOneAxisIsTheWorld) {
  for (const int size : {1, 2, 3, 4, 8}) {
    run_ranks(size, [&](ProcessGroup world) {
      const DeviceMesh mesh = init_device_mesh(world, "cpu", {size}, {"shard"});
      EXPECT_EQ(mesh.device_type(), "cpu");
      EXPECT_EQ(mesh.ndim(), 1);
      EXPECT_EQ(mesh.size(), size);
      EXPECT_EQ(mesh.size(0), size);
      EXPECT_THAT(mesh.axis_names(), ElementsAre("shard"));
      EXPECT_EQ(mesh.coordinate(0), world.rank());
      EXPECT_EQ(mesh.group("shard").size(), size);
      EXPECT_EQ(
          sum_of_ranks(mesh.group(0), world.rank()), size * (size - 1) / 2);
    });
  }
}

TEST(DeviceMesh, OfTwoAxesHandsOutRowsAndColumns) {
  run_ranks(8, [](ProcessGroup world) {
    // Ranks 0..3 are the first row, 4..7 the second.
    const DeviceMesh mesh =
        init_device_mesh(world, "cpu", {2, 4}, {"replicate", "shard"});
    const int row = world.rank() / 4;
    const int column = world.rank() % 4;
    EXPECT_EQ(mesh.ndim(), 2);
    EXPECT_EQ(mesh.size(), 8);
    EXPECT_EQ(mesh.size(0), 2);
    EXPECT_EQ(mesh.size(1), 4);
    EXPECT_EQ(mesh.coordinate(0), row);
    EXPECT_EQ(mesh.coordinate(1), column);

    const ProcessGroup shard = mesh.group("shard");
    EXPECT_EQ(shard.rank(), column);
    EXPECT_THAT(
        shard.world_ranks(),
        ElementsAre(4 * row, 4 * row + 1, 4 * row + 2, 4 * row + 3));
    EXPECT_EQ(sum_of_ranks(shard, world.rank()), row == 0 ? 6 : 22);

    const ProcessGroup replicate = mesh.group("replicate");
    EXPECT_EQ(replicate.rank(), row);
    EXPECT_THAT(replicate.world_ranks(), ElementsAre(column, column + 4));
    EXPECT_EQ(sum_of_ranks(replicate, world.rank()), 2 * column + 4);
    EXPECT_EQ(mesh.group(1).world_ranks(), shard.world_ranks());
  });
}

TEST(DeviceMesh, AnAxisOfOneRankIsAGroupOfOne) {
  run_ranks(2, [](ProcessGroup world) {
    const DeviceMesh mesh = init_device_mesh(world, "cpu", {1, 2});
    EXPECT_THAT(mesh.group(0).world_ranks(), ElementsAre(world.rank()));
    EXPECT_THAT(mesh.group(1).world_ranks(), ElementsAre(0, 1));
    EXPECT_EQ(mesh.coordinate(0), 0);
    EXPECT_EQ(mesh.coordinate(1), world.rank());
  });
}

// A group asked for by one rank only would wait for ever if group() made it.
TEST(DeviceMesh, GroupIsNoHiddenCollective) {
  run_ranks(4, [](ProcessGroup world) {
    const DeviceMesh mesh = init_device_mesh(world, "cpu", {2, 2});
    if (world.rank() == 3) {
      EXPECT_EQ(mesh.group(0).size(), 2);
      EXPECT_EQ(mesh.group(1).size(), 2);
    }
    world.barrier("the end");
  });
}

TEST(DeviceMesh, RefusesShapesAndNamesThatDoNotFit) {
  run_ranks(4, [](ProcessGroup world) {
    const auto text = [&](const char* device,
                          std::vector<int> shape,
                          std::vector<std::string> names) {
      const std::string all =
          refusal([&] { init_device_mesh(world, device, shape, names); });
      const std::string start =
          "[rank " + std::to_string(world.rank()) + "] init_device_mesh: ";
      EXPECT_EQ(all.substr(0, start.size()), start);
      return all.substr(start.size());
    };
    EXPECT_EQ(
        text("cpu", {3}, {}),
        "the shape {3} holds 3 ranks; expected the world's 4");
    EXPECT_EQ(
        text("cpu", {2, 3}, {}),
        "the shape {2, 3} holds 6 ranks; expected the world's 4");
    EXPECT_EQ(text("cpu", {}, {}), "the shape has 0 axes; expected 1 or 2");
    EXPECT_EQ(
        text("cpu", {2, 2, 1}, {}), "the shape has 3 axes; expected 1 or 2");
    EXPECT_EQ(
        text("cpu", {-2, -2}, {}),
        "the shape {-2, -2} has an axis without ranks; expected 1 or more on "
        "each");
    EXPECT_EQ(
        text("cpu", {2, 2}, {"a"}),
        "1 axis names for 2 axes; expected one for each, or none");
    EXPECT_EQ(
        text("cpu", {2, 2}, {"a", "a"}),
        "two axes are named 'a'; expected unique names");
    EXPECT_EQ(text("cpu", {4}, {""}), "axis 0 has an empty name");
    EXPECT_EQ(
        text("cuda", {4}, {}),
        "device type 'cuda' has no backend here; expected 'cpu'");
    world.barrier("all refusals came before any communication");
  });
}

TEST(DeviceMesh, NamesTheAxesItHasWhenAskedForAnother) {
  run_ranks(2, [](ProcessGroup world) {
    const std::string start = "[rank " + std::to_string(world.rank()) + "] ";
    const DeviceMesh named =
        init_device_mesh(world, "cpu", {1, 2}, {"replicate", "shard"});
    EXPECT_EQ(
        refusal([&] { named.group("tensor"); }),
        start +
            "the device mesh has no axis 'tensor'; its axes are 'replicate', "
            "'shard'");
    EXPECT_EQ(
        refusal([&] { named.group(2); }),
        start + "a device mesh of 2 axes has no axis 2");
    const DeviceMesh unnamed = init_device_mesh(world, "cpu", {2});
    EXPECT_EQ(
        refusal([&] { unnamed.group("shard"); }),
        start + "the device mesh has no axis 'shard'; its axes are unnamed");
    EXPECT_EQ(
        refusal([&] { unnamed.coordinate(-1); }),
        start + "a device mesh of 1 axis has no axis -1");
  });
}

} // namespace
} // namespace fsdp
