#pragma once
// The engine for ranks on one host: no rank holds a full copy of its own.
//
// Every group has one region, mapped by all ranks, that holds its parameters in
// full layout and compute dtype. At each outermost entry the ranks meet, each
// copies its own rows in, and they meet again; from then on a gather moves no
// byte and waits for nobody. The registered shards stay private, so whatever a
// user writes between two calls reaches nobody's running forward or backward.
// The parameters show the region's read-only mapping: a write faults.
//
// Gradients are read where autograd left them: its allocations of their sizes
// come from memory that all ranks map (GradientArena). A rank posts a unit's
// gradients with a message that says where each one is; one unit later it sums
// its own rows straight from all ranks' memory, in rank order. A gradient that
// lies elsewhere, or in another dtype, is copied into the message.

#include <array>
#include <deque>

#include "comm/host_memory.h"
#include "runtime/counted_region.h"
#include "runtime/gradient_arena.h"
#include "runtime/shard_engine.h"

namespace fsdp {

class SharedMemoryEngine final : public ShardEngine {
 public:
  explicit SharedMemoryEngine(ProcessGroup group);
  ~SharedMemoryEngine() override;

  void add(ParamGroup& group) override;
  void publish(
      const Request& request, std::span<ParamGroup* const> groups) override;
  bool gathers_move_rows() const override { return false; }
  void start_unshard(ParamGroup& group) override;
  void finish_unshard(ParamGroup& group) override;
  void reshard(ParamGroup& group) override;
  void begin_backward() override;
  void start_reduce(ParamGroup& group) override;
  void finish_backward(const ParamGroup& root) override;
  void abandon() noexcept override;

 private:
  /// A reduction that this rank has posted and not yet summed.
  struct Posted {
    ParamGroup* group;
    std::uint64_t number; ///< in the stream
    std::size_t place;    ///< of the message, the same on every rank
    ReductionTypes types;
  };

  void reserve_gradient_memory(const ParamGroup& group);
  std::size_t rank_bytes() const;
  std::size_t rank_begin(int rank) const;
  std::size_t message_begin(int rank, std::size_t place) const;
  void write_message(const Posted& posted);
  void count_copied(std::size_t place, std::int64_t bytes);
  void finish_oldest();
  void sum_own_rows(const Posted& posted);

  HostMemory& memory_;
  std::shared_ptr<SharedRegion> gradients_; ///< see Note [Gradient memory]
  std::vector<std::size_t> largest_units_;  ///< bytes, the largest first
  std::size_t place_bytes_ = 0;
  std::size_t arena_bytes_ = 0;
  const std::shared_ptr<ExpectedGradients> expected_ =
      std::make_shared<ExpectedGradients>();
  /// Of the next message. Begins at 0 in each epoch, and with each engine (the
  /// stream's numbers go on from one engine to the next).
  std::size_t next_place_ = 0;
  std::uint64_t epoch_ = 0;
  /// By place: what other ranks may be reading, and what was copied into it.
  std::array<std::vector<at::Tensor>, HostMemory::kStreamDepth> held_;
  std::array<CountedBytes, HostMemory::kStreamDepth> copied_;
  std::deque<Posted> posted_;
};

} // namespace fsdp
