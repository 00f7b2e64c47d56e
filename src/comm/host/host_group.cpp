#include "comm/host/host_group.h"

#include <unistd.h>

#include <utility>

#include "comm/error_text.h"
#include "comm/fault_handler.h"
#include "comm/host/futex.h"
#include "fsdp/error.h"

namespace fsdp::host {

HostGroup::HostGroup(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    std::shared_ptr<SharedRegion> control,
    std::unique_ptr<HostLink> link,
    CommCounters& counters)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      region_(std::move(control)),
      control_(region_->writable(), size),
      link_(std::move(link)),
      counters_(counters),
      owner_pid_(getpid()),
      fault_ticket_(add_fault_listener(on_fault, this)),
      requests_(static_cast<std::size_t>(size)),
      ended_(static_cast<std::size_t>(size)) {}

HostGroup::~HostGroup() {
  remove_fault_listener(fault_ticket_);
  // A child forked by the user has a copy of this, but is not the rank.
  if (getpid() != owner_pid_) {
    return;
  }
  mine().has_left.store(1, std::memory_order_release);
  wake_sleepers(mine());
}

std::uint64_t& HostGroup::own_count(Counter counter) {
  switch (counter) {
    case Counter::kPosted:
      return num_posted_;
    case Counter::kConsumed:
      return num_consumed_;
    case Counter::kMet:
      break;
  }
  return num_met_;
}

void HostGroup::advance(Counter counter) {
  const std::uint64_t count = ++own_count(counter);
  mine().now[counter].store(
      pack_counter(epoch_, count), std::memory_order_release);
  wake_sleepers(mine());
}

// The waiter raises `sleepers` and then reads `wake`; this raises `wake` and
// then reads `sleepers`. In their one total order either the waiter sees the
// new `wake`, and with it what was stored before, or we see the waiter.
void HostGroup::wake_sleepers(RankSlot& slot) const noexcept {
  slot.wake.fetch_add(1, std::memory_order_seq_cst);
  if (slot.sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(slot.wake);
  }
}

void HostGroup::open_epoch() {
  check_usable();
  if (open_epoch_ == epoch_) {
    return;
  }
  wait_all(Counter::kMet, 0, [] {
    return std::string("the first call after a failure");
  });
  open_epoch_ = epoch_;
}

void HostGroup::meet(const WireRequest& request) {
  open_epoch();
  ++counters_.num_meetings;
  const std::size_t place = num_met_ % kMeetingDepth;
  mine().meetings[place] = request;
  advance(Counter::kMet);
  wait_all(Counter::kMet, num_met_, [&] { return decode(request).describe(); });
  for (int peer = 0; peer < size_; ++peer) {
    requests_[static_cast<std::size_t>(peer)] =
        control_.slot(peer).meetings[place];
  }
  compare(requests_);
}

void HostGroup::fence(const WireRequest& request) {
  open_epoch();
  advance(Counter::kMet);
  wait_all(Counter::kMet, num_met_, [&] {
    return "the data of " + decode(request).describe();
  });
}

std::uint64_t HostGroup::position() const {
  return pack_counter(epoch_, num_met_);
}

std::uint64_t HostGroup::post(const WireRequest& request) {
  wait_post_slot();
  const std::uint64_t number = num_posted_;
  mine().messages[number % HostMemory::kStreamDepth] = request;
  advance(Counter::kPosted);
  return number;
}

void HostGroup::wait_post_slot() {
  open_epoch();
  const std::uint64_t target = num_posted_ >= HostMemory::kStreamDepth
                                   ? num_posted_ + 1 - HostMemory::kStreamDepth
                                   : 0;
  if (num_consumed_ < target) {
    throw UsageError(
        rank_prefix(rank_) + "gradient message " + std::to_string(target - 1) +
        " must be consumed before message " + std::to_string(num_posted_) +
        " can be posted");
  }
  wait_all(Counter::kConsumed, target, [&] {
    return "the consumption of gradient message " + std::to_string(target - 1);
  });
}

void HostGroup::await(std::uint64_t number) {
  check_usable();
  if (number >= num_posted_ || number < num_consumed_) {
    throw UsageError(
        rank_prefix(rank_) + "gradient message " + std::to_string(number) +
        " cannot be awaited: this rank has posted " +
        std::to_string(num_posted_) + " and consumed " +
        std::to_string(num_consumed_));
  }
  const std::size_t place = number % HostMemory::kStreamDepth;
  wait_all(Counter::kPosted, number + 1, [&] {
    return decode(mine().messages[place]).describe();
  });
  for (int peer = 0; peer < size_; ++peer) {
    requests_[static_cast<std::size_t>(peer)] =
        control_.slot(peer).messages[place];
  }
  compare(requests_);
}

void HostGroup::consume(std::uint64_t number) {
  check_usable();
  if (number != num_consumed_ || number >= num_posted_) {
    throw UsageError(
        rank_prefix(rank_) + "gradient message " + std::to_string(number) +
        " cannot be consumed: the next one is " +
        std::to_string(num_consumed_) + " of " + std::to_string(num_posted_) +
        " posted");
  }
  advance(Counter::kConsumed);
}

} // namespace fsdp::host
