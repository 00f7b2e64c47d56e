#pragma once
// How n rows are split over the ranks of a shard group: the rule of
// torch.chunk, which FSDP2 uses for dim-0 sharding (fsdp2 "Shard(0)").

#include <algorithm>
#include <cstdint>

namespace fsdp {

/// Rows [begin, begin + length) of a parameter.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t length = 0;

  std::int64_t end() const { return begin + length; }
  bool operator==(const RowRange&) const = default;
};

/// Rows of the largest (first) shard: ceil(rows / world). Requires rows >= 0
/// and world >= 1.
constexpr std::int64_t rows_per_rank(std::int64_t rows, int world) {
  return (rows + world - 1) / world;
}

/// The rows that `rank` owns. The last ranks may own fewer, or none; an empty
/// range begins at `rows`.
constexpr RowRange shard_rows(std::int64_t rows, int world, int rank) {
  const std::int64_t chunk = rows_per_rank(rows, world);
  const std::int64_t begin = std::min(rows, chunk * rank);
  return {begin, std::min(rows, begin + chunk) - begin};
}

} // namespace fsdp
