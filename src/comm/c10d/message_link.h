#pragma once
// Messages between the ranks of one group, as the Gloo communicator needs them.
// gloo_backend.cpp makes one over Gloo.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace fsdp {

/// The connection to the peer is closed.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One message under way. Destroying it gives the message up: its memory is no
/// longer touched.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// True once the message has come or has been handed over; false after
  /// interrupt(), and then the call may be repeated. Throws ConnectionLost, but
  /// not dependably: a transfer cut in the middle waits on.
  virtual bool wait() = 0;
  /// Any thread: ends the wait() under way, or the next one.
  virtual void interrupt() = 0;
};

/// Messages of one lane between two ranks are paired in the order posted.
enum class Lane : std::uint8_t {
  kRequests,
  kData,
  kLiveness, ///< never sent on: a receive posted here ends with the connection
};

/// One thread at a time. The memory of a message must live as long as its
/// Transfer. A receive of `bytes` takes a message that is shorter. Throws
/// ConnectionLost.
class MessageLink {
 public:
  virtual ~MessageLink() = default;
  virtual std::unique_ptr<Transfer> send(
      int peer, Lane lane, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(
      int peer, Lane lane, void* data, std::size_t bytes) = 0;
};

} // namespace fsdp
