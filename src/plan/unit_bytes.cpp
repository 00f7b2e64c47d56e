#include "plan/unit_bytes.h"

#include "core/shard_math.h"
#include "plan/count.h"

namespace fsdp::plan {

UnitShards shards_of(const UnitShape& unit, std::int64_t shard_ranks) {
  const int ranks = static_cast<int>(shard_ranks); // check() bounds it
  Count numel = 0;
  Count own = 0;
  Count padded = 0;
  for (const ParamShape& param : unit.params) {
    const Count rows = rows_per_rank(param.rows(), ranks);
    numel += param.numel();
    own += rows * param.row_numel();
    padded += rows * shard_ranks * param.row_numel();
  }
  return {
      .numel = numel.value(),
      .own = own.value(),
      .padded = padded.value(),
      .num_tensors = static_cast<std::int64_t>(unit.params.size())};
}

UnitShards shards_of(const ModelShape& model, std::int64_t shard_ranks) {
  UnitShards sum = shards_of(model.root, shard_ranks);
  for (const UnitShape& block : model.blocks) {
    const UnitShards more = shards_of(block, shard_ranks);
    sum.numel = (Count(sum.numel) + more.numel).value();
    sum.own = (Count(sum.own) + more.own).value();
    sum.padded = (Count(sum.padded) + more.padded).value();
    sum.num_tensors += more.num_tensors;
  }
  return sum;
}

std::int64_t gathered_bytes(const UnitShape& unit, DType compute) {
  constexpr std::int64_t kAlignment = 64;
  Count total = 0;
  for (const ParamShape& param : unit.params) {
    const Count bytes =
        Count(param.numel()) * size_of(compute) + (kAlignment - 1);
    total += bytes.value() / kAlignment * kAlignment;
  }
  return total.value();
}

} // namespace fsdp::plan
