#include "runtime/same_parameters.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "comm/c10d/scalar_type.h"
#include "comm/communicator.h"
#include "core/hash.h"
#include "runtime/sizes_text.h"

namespace fsdp {
namespace {

/// "parameter 'a', float32 [8, 8]".
std::string describe(const ManagedParam& param) {
  std::string text =
      "parameter '" + param.name + "', " +
      std::string(name_of(to_dtype(param.tensor.scalar_type()))) + " " +
      sizes_text(param.tensor.sizes());
  return param.tensor.requires_grad() ? text : text + ", frozen";
}

/// [collective] Every rank's numbers, which must be as many on each.
std::vector<std::int64_t> gather_numbers(
    const ProcessGroup& group, std::span<const std::int64_t> own) {
  const auto num_ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> all(own.size() * num_ranks);
  group.communicator()
      .all_gather(
          own.data(),
          all.data(),
          std::vector<std::int64_t>(
              num_ranks, static_cast<std::int64_t>(own.size())),
          DType::kInt64,
          "fully_shard")
      ->wait();
  return all;
}

/// The first of `count` columns in which the rows of `all` differ, or `count`.
std::size_t first_difference(
    const std::vector<std::int64_t>& all, std::size_t count) {
  for (std::size_t column = 0; column < count; ++column) {
    for (std::size_t i = column; i < all.size(); i += count) {
      if (all[i] != all[column]) {
        return column;
      }
    }
  }
  return count;
}

} // namespace

void require_same_parameters(
    const ProcessGroup& group, const std::vector<ManagedParam>& params) {
  std::string text;
  std::vector<std::int64_t> hashes;
  for (const ManagedParam& param : params) {
    const std::string described = describe(param);
    hashes.push_back(static_cast<std::int64_t>(fnv1a(described)));
    text += described;
  }
  const std::int64_t own[] = {
      static_cast<std::int64_t>(fnv1a(text)),
      static_cast<std::int64_t>(params.size())};
  const auto summaries = gather_numbers(group, own);
  if (first_difference(summaries, 2) == 2) {
    return;
  }
  std::int64_t fewest = own[1];
  for (std::size_t i = 1; i < summaries.size(); i += 2) {
    fewest = std::min(fewest, summaries[i]);
  }
  hashes.resize(static_cast<std::size_t>(fewest));
  const std::size_t first =
      first_difference(gather_numbers(group, hashes), hashes.size());
  group.communicator().meet(
      {.meeting = Meeting::kFullyShard,
       .subject = first < params.size()
                      ? describe(params[first])
                      : "a unit without further 'parameters'"});
}

} // namespace fsdp
