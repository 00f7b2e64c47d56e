// What a communicator without peers counts, and what it leaves alone.

#include "comm/counting_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

namespace fsdp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kTimeout{1000};

CountingCommunicator rank_of(
    int rank, int size, bool (*may_touch_data)(const void*) = nullptr) {
  return {rank, size, kTimeout, may_touch_data};
}

TEST(CountingCommunicator, AGatherSendsTheOwnPieceToEachOther) {
  auto comm = rank_of(1, 4);
  const std::vector<std::int64_t> counts{3, 2, 2, 0};
  const std::vector<float> own{7, 8};
  std::vector<float> all(7);
  comm.all_gather(own.data(), all.data(), counts, DType::kFloat32, "x")->wait();
  EXPECT_EQ(comm.counters().bytes_sent, 2 * 4 * 3);
  EXPECT_EQ(comm.counters().num_all_gathers, 1);
  EXPECT_EQ(comm.counters().num_meetings, 1);
  // Rank 2's piece is as long, the others' are not.
  EXPECT_THAT(all, ElementsAre(0, 0, 0, 7, 8, 7, 8));
}

TEST(CountingCommunicator, AReduceScatterSendsTheOthersSlices) {
  auto comm = rank_of(0, 3);
  const std::vector<std::int64_t> counts{4, 4, 2};
  const std::vector<float> input(10, 1);
  std::vector<float> output(4, 5);
  comm.reduce_scatter(
          input.data(),
          DType::kFloat32,
          output.data(),
          DType::kFloat32,
          counts,
          ReduceOp::kAvg,
          "x")
      ->wait();
  EXPECT_EQ(comm.counters().bytes_sent, 6 * 4);
  EXPECT_THAT(output, Each(0));
}

TEST(CountingCommunicator, AnAllReduceSendsSlicesTwice) {
  auto comm = rank_of(3, 4);
  std::vector<double> data(10, 1); // slices of 3, 3, 3 and 1
  comm.all_reduce(data.data(), 10, DType::kFloat64, ReduceOp::kSum, "x");
  EXPECT_EQ(comm.counters().bytes_sent, (9 + 3 * 1) * 8);
  EXPECT_THAT(data, Each(1));
}

TEST(CountingCommunicator, TheRootOfABroadcastSendsItToEachOther) {
  std::array<std::int64_t, 2> data{1, 2};
  auto root = rank_of(2, 5);
  root.broadcast(data.data(), 2, DType::kInt64, 2, "x");
  EXPECT_EQ(root.counters().bytes_sent, 4 * 16);
  auto other = rank_of(0, 5);
  other.broadcast(data.data(), 2, DType::kInt64, 2, "x");
  EXPECT_EQ(other.counters().bytes_sent, 0);
}

TEST(CountingCommunicator, AWorldOfOneSendsNothing) {
  auto comm = rank_of(0, 1);
  std::vector<float> data(8);
  comm.all_reduce(data.data(), 8, DType::kFloat32, ReduceOp::kSum, "x");
  comm.barrier("x");
  EXPECT_EQ(comm.counters().bytes_sent, 0);
  EXPECT_EQ(comm.counters().num_meetings, 2);
}

TEST(CountingCommunicator, LeavesAloneWhatItMayNotTouch) {
  auto comm = rank_of(0, 2, [](const void*) { return false; });
  auto* const nowhere = reinterpret_cast<float*>(std::uintptr_t{1} << 60);
  const std::vector<std::int64_t> counts{1 << 20, 1 << 20};
  comm.all_gather(nowhere, nowhere, counts, DType::kFloat32, "x")->wait();
  comm.reduce_scatter(
          nowhere,
          DType::kFloat32,
          nowhere,
          DType::kFloat32,
          counts,
          ReduceOp::kSum,
          "x")
      ->wait();
  EXPECT_EQ(comm.counters().bytes_sent, 2 * 4 * (1 << 20));
}

} // namespace
} // namespace fsdp
