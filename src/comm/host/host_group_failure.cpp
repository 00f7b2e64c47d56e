// How ranks tell each other that one cannot go on. The rules are in
// host_group.h.

#include <unistd.h>

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

// A place in the rings of history (records, last counters) was that of the
// epoch kFailureDepth before. It is written again only when every rank is past
// that epoch, and so has read it; a rank that fails more often before a peer
// notices leaves no more history.
bool HostGroup::may_write_history() const noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    const std::uint64_t met =
        control_.slot(peer).now[Counter::kMet].load(std::memory_order_acquire);
    if (epochs_ahead(met, epoch_) <= -static_cast<int>(kFailureDepth)) {
      return false;
    }
  }
  return true;
}

// Writes why this rank leaves its epoch, and claims to speak for the epoch
// unless another rank does.
void HostGroup::record_failure(
    std::string_view line, bool is_mismatch) noexcept {
  if (!may_write_history()) {
    return;
  }
  const std::size_t place = epoch_ % kFailureDepth;
  FailureRecord& record = mine().failures[place];
  record.is_mismatch = is_mismatch ? 1 : 0;
  record.num_bytes =
      static_cast<std::uint32_t>(std::min(line.size(), kFailureTextBytes));
  std::memcpy(record.text, line.data(), record.num_bytes);

  std::atomic<std::uint64_t>& claim = control_.header().claims[place];
  std::uint64_t previous = claim.load(std::memory_order_acquire);
  if (!is_claim_of(previous, epoch_)) {
    claim.compare_exchange_strong(
        previous, pack_claim(epoch_, rank_), std::memory_order_acq_rel);
  }
}

// kMet is stored last: a peer that sees it in the new epoch finds the other
// counters there too.
void HostGroup::enter_next_epoch() noexcept {
  constexpr Counter kInOrder[] = {
      Counter::kPosted, Counter::kConsumed, Counter::kMet};
  RankSlot& slot = mine();
  if (may_write_history()) {
    Counters& last = slot.last[epoch_ % kFailureDepth];
    for (const Counter counter : kInOrder) {
      last[counter].store(
          pack_counter(epoch_, own_count(counter)), std::memory_order_release);
    }
  }
  ++epoch_;
  for (const Counter counter : kInOrder) {
    own_count(counter) = 0;
    slot.now[counter].store(pack_counter(epoch_, 0), std::memory_order_release);
  }
  // A peer may sleep on any rank's word, and wants to know at once.
  for (int peer = 0; peer < size_; ++peer) {
    wake_sleepers(control_.slot(peer));
  }
}

void HostGroup::fail(std::string_view what) noexcept {
  constexpr int kFarAhead = 16384; // half of what epochs_ahead can tell
  for (int peer = 0; peer < size_; ++peer) {
    const std::uint64_t met =
        control_.slot(peer).now[Counter::kMet].load(std::memory_order_acquire);
    if (epochs_ahead(met, epoch_) < -kFarAhead) {
      return; // it has yet to notice 16384 failures: one more says nothing
    }
  }
  try {
    record_failure(failure_line(rank_, what, kFailureTextBytes), false);
  } catch (...) { // out of memory: the others learn who, not why
    record_failure("out of memory", false);
  }
  enter_next_epoch();
}

// In the signal handler of a process that is about to die: the others learn
// why, not only that it died.
void HostGroup::on_fault(void* context, std::string_view text) noexcept {
  auto& group = *static_cast<HostGroup*>(context);
  if (getpid() == group.owner_pid_) {
    group.record_failure(text, false);
    group.enter_next_epoch();
  }
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
  enter_next_epoch();
  if (is_mismatch) {
    throw MismatchError(rank_prefix(rank_) + line);
  }
  throw PeerError(peer_failed_text(rank_, origin, line));
}

// All ranks compare the same requests and come to the same end. The record is
// for those that wait for something else when gradient messages are compared.
void HostGroup::compare(const std::vector<WireRequest>& requests) {
  const std::string mismatch = find_mismatch(requests);
  if (!mismatch.empty()) {
    throw_mismatch(mismatch);
  }
}

void HostGroup::throw_mismatch(const std::string& text) {
  record_failure(text, true);
  enter_next_epoch();
  throw MismatchError(rank_prefix(rank_) + text);
}

} // namespace fsdp::host
