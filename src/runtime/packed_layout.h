#pragma once
// Where the rows of a unit's parameters lie in a buffer packed rank by rank, as
// collectives want it: all of rank 0's rows of every parameter, then rank 1's.

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/sharded_param.h"

namespace fsdp {

struct PackedLayout {
  std::vector<std::int64_t> count_of_rank; ///< units, e.g. elements or bytes
  /// [parameter][rank]: from the buffer's begin.
  std::vector<std::vector<std::int64_t>> begins;
  std::int64_t total = 0;

  std::int64_t begin_of_rank(int rank) const {
    std::int64_t begin = 0;
    for (int before = 0; before < rank; ++before) {
      begin += count_of_rank[static_cast<std::size_t>(before)];
    }
    return begin;
  }
};

/// `units_per_row`: how many units one row of a parameter takes.
inline PackedLayout pack_rank_major(
    const std::vector<ShardedParam*>& params,
    int num_ranks,
    const std::function<std::int64_t(const ShardedParam&)>& units_per_row) {
  PackedLayout layout;
  layout.begins.resize(params.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::int64_t rank_begin = layout.total;
    for (std::size_t i = 0; i < params.size(); ++i) {
      layout.begins[i].push_back(layout.total);
      layout.total += params[i]->rows(rank).length * units_per_row(*params[i]);
    }
    layout.count_of_rank.push_back(layout.total - rank_begin);
  }
  return layout;
}

} // namespace fsdp
