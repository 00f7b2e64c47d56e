#include "core/shard_math.h"

#include <gmock/gmock.h>

#include <vector>

namespace fsdp {
namespace {

std::vector<std::int64_t> lengths(std::int64_t rows, int world) {
  std::vector<std::int64_t> result;
  for (int rank = 0; rank < world; ++rank) {
    result.push_back(shard_rows(rows, world, rank).length);
  }
  return result;
}

TEST(ShardRows, FollowTorchChunk) {
  using ::testing::ElementsAre;
  EXPECT_THAT(lengths(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(lengths(10, 8), ElementsAre(2, 2, 2, 2, 2, 0, 0, 0));
  EXPECT_THAT(lengths(16, 5), ElementsAre(4, 4, 4, 4, 0));
  EXPECT_THAT(lengths(9, 8), ElementsAre(2, 2, 2, 2, 1, 0, 0, 0));
  EXPECT_THAT(lengths(1, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(lengths(0, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(
      lengths(32001, 8),
      ElementsAre(4001, 4001, 4001, 4001, 4001, 4001, 4001, 3994));
}

TEST(ShardRows, AreContiguousAndCoverEveryRow) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (int world = 1; world <= 9; ++world) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const RowRange range = shard_rows(rows, world, rank);
        EXPECT_EQ(range.begin, next) << rows << " rows, rank " << rank;
        next = range.end();
      }
      EXPECT_EQ(next, rows);
    }
  }
}

} // namespace
} // namespace fsdp
