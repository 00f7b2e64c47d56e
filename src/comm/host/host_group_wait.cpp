// How a rank waits for others: a short spin, then sleeping rounds that look for
// whatever would make the wait endless.

#include <algorithm>

#include "comm/error_text.h"
#include "comm/host/futex.h"
#include "comm/host/host_group.h"
#include "fsdp/error.h"

namespace fsdp::host {

namespace {

constexpr int kNumSpins = 100;
constexpr std::chrono::milliseconds kRound{50};

class CountedWait {
 public:
  using Clock = std::chrono::steady_clock;

  explicit CountedWait(CommCounters& counters) : counters_(counters) {}
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;
  ~CountedWait() { counters_.waited += Clock::now() - start_; }

  Clock::time_point start() const { return start_; }

 private:
  CommCounters& counters_;
  const Clock::time_point start_ = Clock::now();
};

class CountedSleeper {
 public:
  explicit CountedSleeper(RankSlot& slot) : slot_(slot) {
    slot_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  CountedSleeper(const CountedSleeper&) = delete;
  CountedSleeper& operator=(const CountedSleeper&) = delete;
  ~CountedSleeper() { slot_.sleepers.fetch_sub(1, std::memory_order_relaxed); }

 private:
  RankSlot& slot_;
};

} // namespace

// Throws PeerError (or MismatchError) if the peer left this epoch before it got
// to `target`.
bool HostGroup::has_reached(int peer, Counter counter, std::uint64_t target) {
  RankSlot& slot = control_.slot(peer);
  const std::uint64_t now = slot.now[counter].load(std::memory_order_acquire);
  const int num_ahead = epochs_ahead(now, epoch_);
  if (num_ahead <= 0) {
    return num_ahead == 0 && count_in(now) >= target;
  }
  const std::uint64_t last = slot.last[epoch_ % kFailureDepth][counter].load(
      std::memory_order_acquire);
  if (epochs_ahead(last, epoch_) == 0 && count_in(last) >= target) {
    return true;
  }
  join_later_epoch(peer);
}

void HostGroup::wait_all(
    Counter counter, std::uint64_t target, const Describe& describe) {
  int peer = 0;
  while (peer < size_ && has_reached(peer, counter, target)) {
    ++peer;
  }
  if (peer == size_) {
    return;
  }
  const CountedWait waiting(counters_);
  const Wait wait{counter, target, describe, waiting.start() + timeout_};
  for (; peer < size_; ++peer) {
    wait_for_peer(peer, wait);
  }
}

void HostGroup::wait_for_peer(int peer, const Wait& wait) {
  for (int spin = 0; spin < kNumSpins; ++spin) {
    if (has_reached(peer, wait.counter, wait.target)) {
      return;
    }
    spin_pause();
  }
  RankSlot& slot = control_.slot(peer);
  const CountedSleeper sleeper(slot);
  bool is_first = true;
  while (true) {
    const std::uint32_t seen = slot.wake.load(std::memory_order_seq_cst);
    if (has_reached(peer, wait.counter, wait.target)) {
      return;
    }
    // The common wait is short: its first sleep is not worth a system call that
    // looks for ended processes.
    check_peers(wait, !is_first);
    is_first = false;
    const auto left = wait.deadline - Clock::now();
    futex_wait(
        slot.wake,
        seen,
        std::clamp<std::chrono::nanoseconds>(
            left, std::chrono::nanoseconds(0), kRound));
  }
}

void HostGroup::check_peers(const Wait& wait, bool is_polling) {
  std::fill(ended_.begin(), ended_.end(), char{0});
  if (is_polling) {
    link_->find_ended(ended_);
  }
  for (int peer = 0; peer < size_; ++peer) {
    const bool has_left =
        control_.slot(peer).has_left.load(std::memory_order_acquire) != 0;
    const bool has_ended = ended_[static_cast<std::size_t>(peer)] != 0;
    // Only after that: what it did before it went counts.
    if (has_reached(peer, wait.counter, wait.target)) {
      continue;
    }
    check_order(peer);
    if (has_left || has_ended) {
      throw_died(peer, wait);
    }
  }
  throw_if_late(wait);
}

void HostGroup::check_order(int peer) {
  RankSlot& slot = control_.slot(peer);
  // What it is ahead in is read first: the other count can only have grown
  // since, so both hold at once.
  const auto is_ahead_but_behind = [&](Counter ahead, Counter behind) {
    const auto first = slot.now[ahead].load(std::memory_order_acquire);
    const auto second = slot.now[behind].load(std::memory_order_acquire);
    return epochs_ahead(first, epoch_) == 0 &&
           epochs_ahead(second, epoch_) == 0 &&
           count_in(first) > own_count(ahead) &&
           count_in(second) < own_count(behind);
  };
  const auto last_meeting = [](RankSlot& of) {
    const auto num_met = count_in(of.now[Counter::kMet].load());
    return of.meetings[(num_met - 1) % kMeetingDepth];
  };
  const auto last_message = [](RankSlot& of) {
    const auto num_posted = count_in(of.now[Counter::kPosted].load());
    return of.messages[(num_posted - 1) % HostMemory::kStreamDepth];
  };
  if (is_ahead_but_behind(Counter::kMet, Counter::kPosted)) {
    throw_mismatch(different_requests(
        rank_, last_message(mine()), peer, last_meeting(slot)));
  }
  if (is_ahead_but_behind(Counter::kPosted, Counter::kMet)) {
    throw_mismatch(different_requests(
        rank_, last_meeting(mine()), peer, last_message(slot)));
  }
}

void HostGroup::throw_if_late(const Wait& wait) {
  if (Clock::now() < wait.deadline) {
    return;
  }
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    if (!has_reached(peer, wait.counter, wait.target)) {
      missing.push_back(peer);
    }
  }
  if (missing.empty()) {
    return; // they came just now
  }
  broken_ = Broken::kTimeout;
  broken_text_ = timeout_text(rank_, timeout_, wait.describe(), missing);
  throw TimeoutError(broken_text_);
}

void HostGroup::throw_died(int peer, const Wait& wait) {
  const bool has_left =
      control_.slot(peer).has_left.load(std::memory_order_acquire) != 0;
  broken_ = Broken::kPeerDied;
  broken_text_ = peer_died_text(
      rank_,
      peer,
      has_left ? "has left the group" : "has died",
      wait.describe());
  throw PeerDiedError(broken_text_);
}

} // namespace fsdp::host
