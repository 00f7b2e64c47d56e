#pragma once
// The control region of a group on one host: what its ranks write for each
// other. Zeroed memory is its initial state.
//
// A rank's slot is written by that rank alone (apart from `wake` and
// `sleepers`). Its counters each carry the rank's epoch, so that one load tells
// "there", "not yet" and "in a later epoch: somebody failed".

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/host_memory.h"
#include "comm/wire_request.h"
#include "core/align.h"

namespace fsdp::host {

/// epoch (16 bits, wraps) | number of things done in this epoch (48 bits).
constexpr std::uint64_t pack_counter(std::uint64_t epoch, std::uint64_t count) {
  return (epoch << 48) | (count & ((std::uint64_t{1} << 48) - 1));
}
constexpr std::uint64_t count_in(std::uint64_t counter) {
  return counter & ((std::uint64_t{1} << 48) - 1);
}
/// How far the counter's epoch is ahead of `epoch`; negative: behind it.
constexpr int epochs_ahead(std::uint64_t counter, std::uint64_t epoch) {
  return static_cast<std::int16_t>(
      static_cast<std::uint16_t>(counter >> 48) -
      static_cast<std::uint16_t>(epoch));
}

/// A rank can be at most one meeting ahead of the slowest reader.
constexpr std::uint64_t kMeetingDepth = 2;
/// Failures that may pass before the slowest rank has noticed the first.
constexpr std::uint64_t kFailureDepth = 8;
constexpr std::size_t kFailureTextBytes = 1016;

/// Why a rank left an epoch; meant for the others if the rank won the claim.
struct FailureRecord {
  std::uint32_t is_mismatch = 0; ///< of requests: known to all ranks alike
  std::uint32_t num_bytes = 0;
  char text[kFailureTextBytes] = {};
};

enum class Counter { kMet, kPosted, kConsumed };
constexpr std::size_t kNumCounters = 3;

/// Meetings and fences come to; gradient messages posted; consumed.
struct Counters {
  std::atomic<std::uint64_t> values[kNumCounters];

  std::atomic<std::uint64_t>& operator[](Counter which) {
    return values[static_cast<std::size_t>(which)];
  }
};

struct alignas(64) RankSlot {
  std::atomic<std::uint32_t> wake; ///< futex word, raised after any change here
  std::atomic<std::uint32_t> sleepers; ///< ranks that may be sleeping on `wake`
  std::atomic<std::uint32_t> has_left;
  alignas(64) Counters now;
  /// By epoch % kFailureDepth: how far the rank got in an epoch that it left.
  alignas(64) Counters last[kFailureDepth];
  alignas(64) WireRequest meetings[kMeetingDepth];
  WireRequest messages[HostMemory::kStreamDepth];
  FailureRecord failures[kFailureDepth]; ///< by epoch % kFailureDepth
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(64) ControlHeader {
  /// By epoch % kFailureDepth: which rank's record speaks for the epoch.
  /// (epoch + 1) << 16 | rank; 0 at first.
  std::atomic<std::uint64_t> claims[kFailureDepth];
};

constexpr std::uint64_t pack_claim(std::uint64_t epoch, int rank) {
  return ((epoch + 1) << 16) | static_cast<std::uint64_t>(rank);
}
constexpr bool is_claim_of(std::uint64_t claim, std::uint64_t epoch) {
  return (claim >> 16) == epoch + 1;
}
constexpr int rank_in_claim(std::uint64_t claim) {
  return static_cast<int>(claim & 0xffff);
}

/// Each rank has two staging buffers of this size, used in turn.
constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

/// Places in the control region of a group of `size` ranks.
class ControlLayout {
 public:
  ControlLayout(std::byte* base, int size) : base_(base), size_(size) {}

  static constexpr std::size_t bytes(int size) {
    return staging_offset(size) +
           (size > 1 ? 2 * kStagingBytes * static_cast<std::size_t>(size) : 0);
  }

  ControlHeader& header() const {
    return *reinterpret_cast<ControlHeader*>(base_);
  }
  RankSlot& slot(int rank) const {
    return reinterpret_cast<RankSlot*>(base_ + sizeof(ControlHeader))[rank];
  }
  std::byte* staging(int rank, std::uint64_t round) const {
    const auto index = 2 * static_cast<std::size_t>(rank) +
                       static_cast<std::size_t>(round % 2);
    return base_ + staging_offset(size_) + index * kStagingBytes;
  }

 private:
  static constexpr std::size_t staging_offset(int size) {
    const std::size_t slots = sizeof(ControlHeader) +
                              sizeof(RankSlot) * static_cast<std::size_t>(size);
    return align_up(slots, 4096);
  }

  std::byte* base_;
  int size_;
};

} // namespace fsdp::host
