#include "comm/c10d/peer_exchange.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;

/// How long ranks that fail at the same moment are waited for, so that every
/// rank quotes the same one of them.
constexpr auto kFailureGrace = 100ms;
/// From seeing a connection closed to believing that nothing more was on it.
constexpr auto kLostGrace = 3 * WaitGate::kPulse;
/// For the last messages of a rank that leaves.
constexpr auto kLeaveTime = 2s;
constexpr auto kGoodByeTime = 100ms;
constexpr auto kLeavePulse = 5ms;

constexpr std::size_t kTextBytes = 1000;

enum class Kind : std::uint8_t {
  kRequest,
  kFailed,   ///< text: the failure line
  kTimedOut, ///< text: the timeout's line
  kDied,     ///< `who` did; text: its fate
  kLeft,
};

/// The sender is past use to this rank: nothing follows the message.
bool ends_group(Kind kind) {
  switch (kind) {
    case Kind::kRequest:
    case Kind::kFailed:
      return false;
    case Kind::kTimedOut:
    case Kind::kDied:
    case Kind::kLeft:
      break;
  }
  return true;
}

} // namespace

struct PeerExchange::Message {
  Kind kind = Kind::kRequest;
  std::int32_t who = 0;
  std::uint64_t epoch = 0;
  std::uint64_t num_received = 0; ///< messages of the receiver's, so far
  std::int64_t failed_at = 0;
  WireRequest request;
  std::uint32_t text_bytes = 0;
  char text[kTextBytes] = {};

  std::size_t bytes() const { return offsetof(Message, text) + text_bytes; }
  std::string_view words() const { return {text, text_bytes}; }
  void say(std::string_view line) {
    text_bytes = static_cast<std::uint32_t>(std::min(line.size(), kTextBytes));
    std::memcpy(text, line.data(), text_bytes);
  }
};

struct PeerExchange::Peer {
  struct Sent {
    std::unique_ptr<Message> message;
    std::unique_ptr<Transfer> transfer;
    std::uint64_t number;
  };

  int rank = 0;
  Message inbox;
  std::unique_ptr<Transfer> next; ///< into `inbox`; null: the peer is lost
  std::byte never_sent{};
  std::unique_ptr<Transfer> liveness;
  std::deque<Sent> outgoing; ///< not known to have been taken
  std::uint64_t num_sent = 0;
  std::uint64_t num_received = 0;
  bool is_lost = false;
  Clock::time_point lost_at;
  /// It was sent data since its last message: closing the connection could
  /// drop what the network has not carried yet.
  bool may_lack_data = false;
};

struct PeerExchange::Answers {
  std::vector<WireRequest> requests; ///< by rank
  std::vector<Message> failures;
};

PeerExchange::PeerExchange(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    std::unique_ptr<MessageLink> link,
    WaitGate& gate)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      gate_(gate),
      link_(std::move(link)) {
  for (int r = 0; r < size; ++r) {
    peers_.push_back(r == rank ? nullptr : std::make_unique<Peer>());
    if (r != rank) {
      Peer& peer = *peers_.back();
      peer.rank = r;
      listen(peer);
      try {
        peer.liveness = link_->receive(r, Lane::kLiveness, &peer.never_sent, 1);
      } catch (const ConnectionLost&) {
        // Found by is_lost.
      }
    }
  }
}

PeerExchange::~PeerExchange() = default;

void PeerExchange::begin_call(std::function<std::string()> describe) {
  describe_ = std::move(describe);
  deadline_ = Clock::now() + timeout_;
}

void PeerExchange::listen(Peer& peer) {
  peer.next.reset();
  try {
    peer.next = link_->receive(
        peer.rank, Lane::kRequests, &peer.inbox, sizeof(Message));
  } catch (const ConnectionLost&) {
    // Found by look_around.
  }
}

/// False if interrupted or if the peer is lost.
bool PeerExchange::next_message(Peer& peer, Message& message) {
  try {
    if (!peer.next || !gate_.wait(*peer.next)) {
      return false;
    }
  } catch (const ConnectionLost&) {
    peer.next.reset();
    return false;
  }
  message = peer.inbox;
  listen(peer);
  ++peer.num_received;
  peer.may_lack_data = false;
  while (!peer.outgoing.empty() &&
         peer.outgoing.front().number < message.num_received) {
    peer.outgoing.pop_front();
  }
  return true;
}

void PeerExchange::tell_all(const Message& message) {
  for (int i = 1; i < size_; ++i) {
    Peer& peer = *peers_[static_cast<std::size_t>((rank_ + i) % size_)];
    auto copy = std::make_unique<Message>(message);
    copy->num_received = peer.num_received;
    try {
      auto transfer =
          link_->send(peer.rank, Lane::kRequests, copy.get(), copy->bytes());
      peer.outgoing.push_back(
          {std::move(copy), std::move(transfer), peer.num_sent++});
    } catch (const ConnectionLost&) {
      // It may have said why before: look_around finds out.
    }
  }
}

void PeerExchange::meet(const WireRequest& request, std::uint64_t epoch) {
  Message own;
  own.epoch = epoch;
  own.request = request;
  tell_all(own);
  const Answers answers = collect_answers(request, epoch);
  if (!answers.failures.empty()) {
    end_epoch(answers.failures);
  }
  const std::string mismatch = find_mismatch(answers.requests);
  if (!mismatch.empty()) {
    throw EpochEnded{
        std::make_exception_ptr(MismatchError(rank_prefix(rank_) + mismatch))};
  }
}

/// Waits for one message of `epoch` from every peer, but after a failure only
/// for others of the same moment.
PeerExchange::Answers PeerExchange::collect_answers(
    const WireRequest& request, std::uint64_t epoch) {
  Answers answers;
  answers.requests.assign(static_cast<std::size_t>(size_), request);
  std::vector<int> awaited;
  for (int i = 1; i < size_; ++i) {
    awaited.push_back((rank_ + i) % size_);
  }
  Clock::time_point grace_end;
  std::size_t at = 0;
  std::size_t num_idle = 0;
  Message message;
  while (!awaited.empty() &&
         (answers.failures.empty() || Clock::now() < grace_end)) {
    at %= awaited.size();
    Peer& peer = *peers_[static_cast<std::size_t>(awaited[at])];
    if (!next_message(peer, message)) {
      look_around(awaited, ++num_idle);
      ++at;
      continue;
    }
    num_idle = 0;
    if (ends_group(message.kind)) {
      throw_gone(message, peer.rank);
    }
    if (message.epoch < epoch) {
      continue;
    }
    if (message.kind == Kind::kFailed) {
      answers.failures.push_back(message);
      grace_end = Clock::now() + kFailureGrace;
    } else {
      answers.requests[static_cast<std::size_t>(peer.rank)] = message.request;
    }
    awaited.erase(awaited.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return answers;
}

void PeerExchange::end_epoch(const std::vector<Message>& failures) const {
  const Message& first = *std::min_element(
      failures.begin(), failures.end(), [](const Message& a, const Message& b) {
        return std::pair(a.failed_at, a.who) < std::pair(b.failed_at, b.who);
      });
  throw EpochEnded{std::make_exception_ptr(
      PeerError(peer_failed_text(rank_, first.who, first.words())))};
}

void PeerExchange::announce_failure(
    std::string_view line,
    std::chrono::system_clock::time_point failed_at,
    std::uint64_t epoch) {
  Message message;
  message.kind = Kind::kFailed;
  message.who = rank_;
  message.epoch = epoch;
  message.failed_at = failed_at.time_since_epoch().count();
  message.say(line);
  tell_all(message);
}

void PeerExchange::send(int peer, const void* data, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  try {
    posted_.push_back(
        {link_->send(peer, Lane::kData, data, bytes), peer, true});
  } catch (const ConnectionLost&) {
    throw_lost(*peers_[static_cast<std::size_t>(peer)]);
  }
}

void PeerExchange::receive(int peer, void* data, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  try {
    posted_.push_back(
        {link_->receive(peer, Lane::kData, data, bytes), peer, false});
  } catch (const ConnectionLost&) {
    throw_lost(*peers_[static_cast<std::size_t>(peer)]);
  }
}

void PeerExchange::finish() {
  std::size_t at = 0;
  std::size_t num_idle = 0;
  while (!posted_.empty()) {
    at %= posted_.size();
    Posted& item = posted_[at];
    Peer& peer = *peers_[static_cast<std::size_t>(item.peer)];
    bool is_done = false;
    try {
      is_done = gate_.wait(*item.transfer);
    } catch (const ConnectionLost&) {
      throw_lost(peer);
    }
    if (is_done) {
      peer.may_lack_data = peer.may_lack_data || item.is_send;
      posted_.erase(posted_.begin() + static_cast<std::ptrdiff_t>(at));
      num_idle = 0;
      continue;
    }
    std::vector<int> awaited;
    for (const Posted& other : posted_) {
      awaited.push_back(other.peer);
    }
    look_around(awaited, ++num_idle);
    ++at;
  }
}

std::byte* PeerExchange::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();                     // the old one first: it may be large
    scratch_.reset(new std::byte[bytes]); // without zeroing, unlike make_unique
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

bool PeerExchange::is_lost(Peer& peer) {
  if (!peer.is_lost) {
    try {
      if (peer.liveness) {
        peer.liveness->interrupt();
        peer.liveness->wait();
        return false;
      }
    } catch (const ConnectionLost&) {
      peer.liveness.reset();
    }
    peer.is_lost = true;
    peer.lost_at = Clock::now();
  }
  return true;
}

/// After a wait that was interrupted: `num_idle` of them in a row.
void PeerExchange::look_around(
    const std::vector<int>& awaited, std::size_t num_idle) {
  if (gate_.is_closed()) {
    throw GateClosed{};
  }
  const auto now = Clock::now();
  for (const int rank : awaited) {
    Peer& peer = *peers_[static_cast<std::size_t>(rank)];
    if (!peer.next || (is_lost(peer) && now > peer.lost_at + kLostGrace)) {
      throw_lost(peer);
    }
  }
  // Each awaited peer was looked at once more since the deadline.
  if (now >= deadline_ && num_idle > awaited.size()) {
    std::vector<int> missing = awaited;
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    throw TimeoutError(timeout_text(rank_, timeout_, describe_(), missing));
  }
}

/// The connection is closed; the peer may have told why.
void PeerExchange::throw_lost(Peer& peer) {
  const ScopedPulse pulse(gate_);
  Message message;
  for (int tries = 0; tries < 3 && peer.next; ++tries) {
    if (next_message(peer, message) && message.kind != Kind::kRequest) {
      throw_gone(message, peer.rank);
    }
  }
  throw_died(peer.rank, "has died");
}

void PeerExchange::throw_gone(const Message& message, int sender) {
  switch (message.kind) {
    case Kind::kTimedOut:
      throw TimeoutError(rank_prefix(rank_) + std::string(message.words()));
    case Kind::kDied:
      if (message.who == rank_) {
        throw_died(sender, "has lost its connection to this rank");
      }
      throw_died(message.who, std::string(message.words()));
    case Kind::kFailed:
      throw_died(
          sender,
          "has left the group after it failed: " +
              std::string(message.words()));
    default:
      throw_died(sender, "has left the group");
  }
}

void PeerExchange::throw_died(int who, const std::string& fate) {
  died_ = who;
  fate_ = fate;
  throw PeerDiedError(peer_died_text(rank_, who, fate, describe_()));
}

void PeerExchange::give_up_notice(
    std::exception_ptr error, Message& message) const {
  message.kind = Kind::kLeft;
  message.who = rank_;
  if (!error) {
    return;
  }
  try {
    std::rethrow_exception(std::move(error));
  } catch (const TimeoutError& timeout) {
    message.kind = Kind::kTimedOut;
    message.say(failure_line(rank_, timeout.what(), kTextBytes));
  } catch (const PeerDiedError&) {
    message.kind = Kind::kDied;
    message.who = died_;
    message.say(fate_);
  } catch (...) {
    // Nothing that the peers could use: it just leaves.
  }
}

/// One try; true once the peer has taken what it was told, or is gone. What it
/// tells meanwhile is read: it may be waiting for the same. A failure is worth
/// more time than a good-bye.
bool PeerExchange::is_flushed(Peer& peer, bool is_late) {
  auto last = std::find_if(
      peer.outgoing.rbegin(), peer.outgoing.rend(), [&](const auto& sent) {
        const Kind kind = sent.message->kind;
        return kind != Kind::kRequest && (kind != Kind::kLeft || !is_late);
      });
  Message message;
  try {
    if (last != peer.outgoing.rend() && gate_.wait(*last->transfer)) {
      peer.outgoing.erase(peer.outgoing.begin(), last.base());
      last = peer.outgoing.rend();
    }
    if (last == peer.outgoing.rend() && !peer.may_lack_data) {
      return true;
    }
  } catch (const ConnectionLost&) {
    return true;
  }
  const bool has_said_more = next_message(peer, message);
  return has_said_more ? ends_group(message.kind) : !peer.next || is_lost(peer);
}

void PeerExchange::leave(std::exception_ptr error) noexcept {
  gate_.open_for_last_words();
  try {
    Message message;
    give_up_notice(std::move(error), message);
    tell_all(message);
    const ScopedPulse pulse(gate_, kLeavePulse);
    const auto start = Clock::now();
    std::deque<Peer*> unflushed;
    for (const auto& peer : peers_) {
      if (peer) {
        unflushed.push_back(peer.get());
      }
    }
    while (!unflushed.empty() && Clock::now() < start + kLeaveTime) {
      Peer* const peer = unflushed.front();
      unflushed.pop_front();
      if (!is_flushed(*peer, Clock::now() > start + kGoodByeTime)) {
        unflushed.push_back(peer);
      }
    }
  } catch (...) {
    // Out of memory or threads: the peers see the closed connection.
  }
  posted_.clear();
  peers_.clear();
  link_.reset();
}

} // namespace fsdp
