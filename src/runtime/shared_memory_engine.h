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
// Gradients go through one slab per rank with room for two units: a rank copies
// a unit's gradients into its slab and posts it; one unit later it sums its own
// rows straight from all slabs, in rank order.

#include <deque>

#include "comm/host_memory.h"
#include "runtime/counted_region.h"
#include "runtime/shard_engine.h"

namespace fsdp {

class SharedMemoryEngine final : public ShardEngine {
 public:
  explicit SharedMemoryEngine(ProcessGroup group);
  ~SharedMemoryEngine() override;

  void add(ParamGroup& group) override;
  void publish(
      const Request& request, std::span<ParamGroup* const> groups) override;
  void start_unshard(ParamGroup& group) override;
  void finish_unshard(ParamGroup& group) override;
  void reshard(ParamGroup& group) override;
  void start_reduce(ParamGroup& group) override;
  void finish_backward(const ParamGroup& root) override;
  void abandon() noexcept override;

 private:
  /// A reduction that this rank has posted and not yet summed.
  struct Posted {
    ParamGroup* group;
    std::uint64_t number; ///< in the stream
    std::size_t place;    ///< of the slab, the same on every rank
    ReductionTypes types;
  };

  CountedRegion allocate(
      std::size_t bytes, const std::string& label, MemoryComponent component);
  void require_slab(std::size_t message_bytes);
  std::size_t place_offset(int rank, std::size_t place) const;
  void finish_oldest();
  void sum_own_rows(const Posted& posted);

  HostMemory& memory_;
  CountedRegion slab_; ///< kStreamDepth places for each rank
  std::size_t place_bytes_ = 0;
  /// Of the next message. Begins at 0 in each epoch, and with each engine (the
  /// stream's numbers go on from one engine to the next).
  std::size_t next_place_ = 0;
  std::uint64_t epoch_ = 0;
  std::deque<Posted> posted_;
};

} // namespace fsdp
