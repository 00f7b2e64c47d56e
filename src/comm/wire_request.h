#pragma once
// A Request as it travels between ranks: fixed size, no pointers.

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "comm/communicator.h"

namespace fsdp {

struct WireRequest {
  std::uint8_t meeting = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t grad_enabled = 0;
  std::int32_t root = 0;
  std::uint32_t tree = 0;
  std::uint32_t reserved = 0; ///< what would be padding
  std::int64_t numel = 0;
  std::uint64_t counts_hash = 0; ///< how `numel` is split over the ranks
  std::uint8_t subject_bytes = 0;
  char subject[119] = {}; ///< zero behind subject_bytes
};
static_assert(std::is_trivially_copyable_v<WireRequest>);
static_assert(sizeof(WireRequest) == 152);

/// `counts`: how a collective's elements are split (Collective::layout), else
/// empty.
WireRequest encode(
    const Request& request, std::span<const std::int64_t> counts = {});
Request decode(const WireRequest& request);

/// The text (without "[rank r] ") that names both ranks and what they ask for,
/// the lower rank first.
std::string different_requests(
    int rank_a,
    const WireRequest& request_a,
    int rank_b,
    const WireRequest& request_b);

/// The text (without "[rank r] ") that names the first rank whose request
/// differs from rank 0's, or an empty string if all are equal.
std::string find_mismatch(std::span<const WireRequest> by_rank);

} // namespace fsdp
