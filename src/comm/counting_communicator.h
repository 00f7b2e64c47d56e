#pragma once
// A communicator without peers: for one rank of any world size, it counts what
// a program asks for and sends nothing.

#include "comm/communicator.h"

namespace fsdp {

/// The other ranks are taken to do what this one does, at once: gathers bring
/// this rank's piece for each rank whose piece is as long, a reduce-scatter
/// gives zeros, all else leaves this rank's values. Bytes count as messages
/// between all pairs of ranks move them (as gloo's do): of a gather, the own
/// piece to each other rank; of a reduce-scatter, every other rank's slice to
/// its owner; of an all-reduce both in turn; of a broadcast, all of it from the
/// root to each other rank.
class CountingCommunicator final : public Communicator {
 public:
  /// `may_touch_data(p)` is false for addresses that must be left alone (of
  /// devices without memory); null: it touches all.
  CountingCommunicator(
      int rank,
      int size,
      std::chrono::milliseconds timeout,
      bool (*may_touch_data)(const void*));

  void meet(const Request& request) override;
  void fail(std::string_view what) noexcept override;
  std::uint64_t epoch() const override { return epoch_; }
  bool serves_devices() const override { return true; }

 private:
  std::shared_ptr<Work> start(const Collective& collective) override;
  std::int64_t bytes_sent(const Collective& collective) const;
  void fill(const Collective& collective) const;
  bool may_touch(const void* data) const;

  bool (*may_touch_)(const void*);
  std::uint64_t epoch_ = 0;
};

} // namespace fsdp
