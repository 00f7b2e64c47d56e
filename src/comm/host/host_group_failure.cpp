// How ranks tell each other that one cannot go on. The rules are in
// host_group.h.

#include <algorithm>
#include <cstring>

#include "comm/error_text.h"
#include "comm/host/host_group.h"
#include "fsdp/error.h"

namespace fsdp::host {

void HostGroup::check_usable() const {
  switch (broken_) {
    case Broken::kNo:
      return;
    case Broken::kTimeout:
      throw TimeoutError(broken_text_);
    case Broken::kPeerDied:
      throw PeerDiedError(broken_text_);
  }
}

// Writes why this rank leaves its epoch and claims to speak for the epoch;
// false if another rank has the claim. A record's place is written again only
// when every rank is past the epoch it was for, and so has read it: a rank that
// fails kFailureDepth times before a peer notices leaves no more records.
bool HostGroup::record_failure(
    std::string_view line, bool is_mismatch) noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    const std::uint64_t met =
        control_.slot(peer).met.load(std::memory_order_acquire);
    if (epochs_ahead(met, epoch_) <= -static_cast<int>(kFailureDepth)) {
      return false;
    }
  }
  const std::size_t place = epoch_ % kFailureDepth;
  FailureRecord& record = mine().failures[place];
  record.is_mismatch = is_mismatch ? 1 : 0;
  record.num_bytes =
      static_cast<std::uint32_t>(std::min(line.size(), kFailureTextBytes));
  std::memcpy(record.text, line.data(), record.num_bytes);

  std::atomic<std::uint64_t>& claim = control_.header().claims[place];
  std::uint64_t previous = claim.load(std::memory_order_acquire);
  return !is_claim_of(previous, epoch_) &&
         claim.compare_exchange_strong(
             previous, pack_claim(epoch_, rank_), std::memory_order_acq_rel);
}

// `met` is stored last: a peer that sees it in this epoch finds the others too.
void HostGroup::enter_epoch(std::uint64_t epoch) noexcept {
  epoch_ = epoch;
  num_met_ = 0;
  num_posted_ = 0;
  num_consumed_ = 0;
  const std::uint64_t start = pack_counter(epoch, 0);
  RankSlot& slot = mine();
  slot.posted.store(start, std::memory_order_release);
  slot.consumed.store(start, std::memory_order_release);
  slot.met.store(start, std::memory_order_release);
  // A peer may sleep on any rank's word, and wants to know at once.
  for (int peer = 0; peer < size_; ++peer) {
    wake_sleepers(control_.slot(peer));
  }
}

void HostGroup::fail(std::string_view what) noexcept {
  constexpr int kFarAhead = 16384; // half of what epochs_ahead can tell
  for (int peer = 0; peer < size_; ++peer) {
    const std::uint64_t met =
        control_.slot(peer).met.load(std::memory_order_acquire);
    if (epochs_ahead(met, epoch_) < -kFarAhead) {
      return; // it has yet to notice 16384 failures: one more says nothing
    }
  }
  try {
    record_failure(failure_line(rank_, what, kFailureTextBytes), false);
  } catch (...) { // out of memory: the others learn who, not why
    record_failure("out of memory", false);
  }
  enter_epoch(epoch_ + 1);
}

// One epoch at a time, however far the peer is ahead: each failure is thrown
// once on every rank, so that ranks that catch and go on stay in step.
void HostGroup::join_later_epoch(int peer) {
  const std::size_t place = epoch_ % kFailureDepth;
  const std::uint64_t claim =
      control_.header().claims[place].load(std::memory_order_acquire);
  int origin = peer;
  bool is_mismatch = false;
  std::string line = "it failed many times before this rank noticed";
  if (is_claim_of(claim, epoch_)) {
    origin = rank_in_claim(claim);
    const FailureRecord& record = control_.slot(origin).failures[place];
    is_mismatch = record.is_mismatch != 0;
    line.assign(record.text, record.num_bytes);
  }
  enter_epoch(epoch_ + 1);
  if (is_mismatch) {
    throw MismatchError(rank_prefix(rank_) + line);
  }
  throw PeerError(peer_failed_text(rank_, origin, line));
}

// All ranks compare the same requests and come to the same end; a rank that is
// still waiting for one of them when another has already left the epoch finds
// the record instead.
void HostGroup::compare(const std::vector<WireRequest>& requests) {
  const std::string mismatch = find_mismatch(requests);
  if (mismatch.empty()) {
    return;
  }
  record_failure(mismatch, true);
  enter_epoch(epoch_ + 1);
  throw MismatchError(rank_prefix(rank_) + mismatch);
}

} // namespace fsdp::host
