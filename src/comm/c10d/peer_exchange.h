#pragma once
// What the ranks of a Gloo group tell each other: requests before any data
// moves (a collective over unequal sizes would end the process from a thread of
// Gloo's), failures, and that they leave; and the data itself.
//
// Every rank keeps a receive posted for the next message of every peer. So a
// message is delivered without the peer's doing: a rank that fails tells the
// others at once and goes on, even if they are far from their next call.
//
// Messages carry the sender's epoch. In each epoch a rank sends one message for
// each of its calls, until its failure, the last; hence the k-th messages of
// all ranks belong to the same call. A rank that learns of a failure does not
// wait for the other peers' messages of that call: they are recognised by their
// epoch and dropped when they come.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/c10d/message_link.h"
#include "comm/c10d/wait_gate.h"
#include "comm/wire_request.h"

namespace fsdp {

/// The epoch is over; `error` (PeerError, MismatchError) is what the caller
/// gets. The group can be used again.
struct EpochEnded {
  std::exception_ptr error;
};

/// WaitGate::close() was called.
struct GateClosed {};

/// One thread, the worker's. Every other exception (TimeoutError,
/// PeerDiedError) means that the group is past use.
class PeerExchange {
 public:
  /// `link` is null for a group of one. `gate` must outlive this.
  PeerExchange(
      int rank,
      int size,
      std::chrono::milliseconds timeout,
      std::unique_ptr<MessageLink> link,
      WaitGate& gate);
  ~PeerExchange();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Starts the clock of a call, and names it in the errors of its waits.
  void begin_call(std::function<std::string()> describe);

  /// Sends this rank's request and waits for those of all ranks. Throws
  /// EpochEnded if one has failed or if they differ.
  void meet(const WireRequest& request, std::uint64_t epoch);

  /// Tells the peers that this rank has failed. Does not wait for them.
  void announce_failure(
      std::string_view line,
      std::chrono::system_clock::time_point failed_at,
      std::uint64_t epoch);

  // Data of the call, after meet(). `bytes` may be 0 on both sides.
  void send(int peer, const void* data, std::size_t bytes);
  void receive(int peer, void* data, std::size_t bytes);
  /// Waits for all that was posted.
  void finish();
  /// After an exception: the memory of what was posted is the caller's again.
  void give_up_data() { posted_.clear(); }
  /// Valid until the next call of this.
  std::byte* scratch(std::size_t bytes);

  /// Tells the peers why this rank gives the group up (`error` is one that was
  /// thrown here, or null: it just leaves), waits a little until the last words
  /// are out, and closes the connections. Nothing else may be called
  /// afterwards.
  void leave(std::exception_ptr error) noexcept;

 private:
  struct Message;
  struct Peer;
  struct Answers;
  struct Posted {
    std::unique_ptr<Transfer> transfer;
    int peer;
    bool is_send;
  };
  using Clock = std::chrono::steady_clock;

  void listen(Peer& peer);
  bool next_message(Peer& peer, Message& message);
  void tell_all(const Message& message);
  Answers collect_answers(const WireRequest& request, std::uint64_t epoch);
  bool is_lost(Peer& peer);
  void look_around(const std::vector<int>& awaited, std::size_t num_idle);
  [[noreturn]] void throw_lost(Peer& peer);
  [[noreturn]] void throw_gone(const Message& message, int sender);
  [[noreturn]] void throw_died(int who, const std::string& fate);
  [[noreturn]] void end_epoch(const std::vector<Message>& failures) const;
  void give_up_notice(std::exception_ptr error, Message& message) const;
  bool is_flushed(Peer& peer, bool is_late);

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  WaitGate& gate_;
  std::unique_ptr<MessageLink> link_;
  std::vector<std::unique_ptr<Peer>> peers_; ///< by rank; null for this one
  std::vector<Posted> posted_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::function<std::string()> describe_;
  Clock::time_point deadline_;
  int died_ = -1; ///< the peer that ended the group, and how
  std::string fate_;
};

} // namespace fsdp
