#pragma once
// How much of a unit rank 0, which has most, owns and gathers.

#include <cstdint>

#include "core/dtype.h"
#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

/// Elements of a unit over `shard_ranks` ranks.
struct UnitShards {
  std::int64_t numel = 0;
  std::int64_t own = 0;    ///< rank 0's: the first rows of each parameter
  std::int64_t padded = 0; ///< with every rank's piece as large as rank 0's
  std::int64_t num_tensors = 0;
};

UnitShards shards_of(const UnitShape& unit, std::int64_t shard_ranks);

/// Of the whole model.
UnitShards shards_of(const ModelShape& model, std::int64_t shard_ranks);

/// Bytes of the block that a unit is gathered into: libfsdp begins each
/// parameter at a multiple of 64 bytes.
std::int64_t gathered_bytes(const UnitShape& unit, DType compute);

} // namespace fsdp::plan
