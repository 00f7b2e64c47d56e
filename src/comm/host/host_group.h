#pragma once
// Where the ranks of one host meet: meetings, fences, the gradient stream and
// failures, over a control region.
//
// Epochs. A rank leaves its epoch when it fails, when it finds a mismatch, or
// when it waits for a peer that left the epoch before it got that far (the
// reason is in the record claimed for the epoch). It enters the next epoch, one
// at a time, and waits for nobody in doing so. How far a rank got in an epoch
// that it left stays readable: a meeting that all ranks have come to ends well
// on all of them, whatever some do next, so that each failure is thrown in the
// same call on every rank.
//
// Order. Meetings and gradient messages are counted apart, but every rank makes
// its calls in one order. So a peer that is ahead in meetings and behind in
// messages, or the other way round, calls in another order, and the ranks would
// wait for each other without end: a mismatch, found while waiting.
//
// Hazards. A rank of a new epoch must not overwrite what a slower peer, still
// in an older one, may be reading: requests, staging, the memory of gradient
// messages. So the first call in an epoch that could lead to a write waits
// until every rank has entered it (open_epoch). A rank enters an epoch only
// between its calls or while it waits, never while it reads; hence from then on
// everything written before is nobody's. Within an epoch: a request's place is
// used again two meetings later, when every rank has come to the meeting
// between and so has read it; staging likewise, see HostCommunicator.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/control.h"
#include "comm/host/host_link.h"
#include "comm/host_memory.h"

namespace fsdp::host {

/// One rank's handle. One thread at a time.
class HostGroup {
 public:
  /// `counters` are the communicator's; must outlive this.
  HostGroup(
      int rank,
      int size,
      std::chrono::milliseconds timeout,
      std::shared_ptr<SharedRegion> control,
      std::unique_ptr<HostLink> link,
      CommCounters& counters);
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;
  /// Tells ranks that wait for this one, now or later, that it has left.
  ~HostGroup();

  /// Waits until every rank of the group is in this rank's epoch. To be called
  /// before memory is written that peers have read in an earlier one.
  void open_epoch();

  /// Comes to the next meeting and compares all requests.
  void meet(const WireRequest& request);
  /// A meeting without a request of its own, inside the call `request`.
  void fence(const WireRequest& request);
  /// The number of meetings and fences in this epoch, with the epoch: equal on
  /// all ranks that have just passed the same one, and growing.
  std::uint64_t position() const;

  std::uint64_t post(const WireRequest& request);
  void wait_post_slot();
  void await(std::uint64_t number);
  void consume(std::uint64_t number);

  void fail(std::string_view what) noexcept;
  std::uint64_t epoch() const { return epoch_; }

  const ControlLayout& control() const { return control_; }
  HostLink& link() { return *link_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Describe = std::function<std::string()>;
  struct Wait {
    Counter counter;
    std::uint64_t target;
    const Describe& describe;
    Clock::time_point deadline;
  };

  // Waiting (host_group_wait.cpp).
  void wait_all(
      Counter counter, std::uint64_t target, const Describe& describe);
  void wait_for_peer(int peer, const Wait& wait);
  bool has_reached(int peer, Counter counter, std::uint64_t target);
  void check_peers(const Wait& wait, bool is_polling);
  void throw_if_late(const Wait& wait);
  void check_order(int peer);
  [[noreturn]] void throw_died(int peer, const Wait& wait);

  // Failures (host_group_failure.cpp).
  void check_usable() const;
  bool may_write_history() const noexcept;
  void record_failure(std::string_view line, bool is_mismatch) noexcept;
  static void on_fault(void* group, std::string_view text) noexcept;
  void enter_next_epoch() noexcept;
  [[noreturn]] void join_later_epoch(int peer);
  void compare(const std::vector<WireRequest>& requests);
  [[noreturn]] void throw_mismatch(const std::string& text);

  RankSlot& mine() const { return control_.slot(rank_); }
  std::uint64_t& own_count(Counter counter);
  void advance(Counter counter);
  void wake_sleepers(RankSlot& slot) const noexcept;

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<SharedRegion> region_;
  const ControlLayout control_;
  const std::unique_ptr<HostLink> link_;
  CommCounters& counters_;
  const int owner_pid_;
  const int fault_ticket_;

  std::uint64_t epoch_ = 0;
  std::uint64_t open_epoch_ = 0; // every rank has entered this one
  std::uint64_t num_met_ = 0;    // in this epoch, as the next two
  std::uint64_t num_posted_ = 0;
  std::uint64_t num_consumed_ = 0;
  std::vector<WireRequest> requests_; // scratch of compare, by rank
  std::vector<char> ended_;           // scratch of check_peers, by rank

  // The group is past use: what every further call throws.
  enum class Broken { kNo, kTimeout, kPeerDied };
  Broken broken_ = Broken::kNo;
  std::string broken_text_;
};

} // namespace fsdp::host
