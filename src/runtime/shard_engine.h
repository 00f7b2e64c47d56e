#pragma once
// How the units of one shard group are gathered and reduced. Two engines: one
// published copy in memory that all ranks map (SharedMemoryEngine), or
// collectives into buffers of this rank (CollectiveEngine). The rest of the
// runtime does not know which.
//
// Calls marked [collective] are made by every rank of the group in the same
// order; a rank that does otherwise is named in a MismatchError.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "fsdp/process_group.h"
#include "runtime/param_group.h"

namespace fsdp {

class ShardEngine {
 public:
  virtual ~ShardEngine() = default;

  Communicator& communicator() const { return group_.communicator(); }

  /// [collective] Makes room for the gathered group; again after a change of
  /// its compute dtype.
  virtual void add(ParamGroup& group) = 0;

  /// [collective] Called when the ranks have met with `request`: until the next
  /// time every gather of `groups` shows the values that the shards have now.
  virtual void publish(
      const Request& request, std::span<ParamGroup* const> groups) = 0;

  /// Whether a gather moves rows; else all of them are there once published.
  virtual bool gathers_move_rows() const { return true; }
  /// [collective] Begins to gather; at most once before finish_unshard.
  virtual void start_unshard(ParamGroup& group) = 0;
  /// Waits, and switches the parameters to their gathered form.
  virtual void finish_unshard(ParamGroup& group) = 0;
  /// Switches the parameters back to their shards and frees the gathered
  /// memory. Also ends a gather that was started and never finished.
  virtual void reshard(ParamGroup& group) = 0;

  /// A backward has begun; called on the thread that runs it.
  virtual void begin_backward() {}

  /// [collective] Takes the full gradients of the group's parameters
  /// (release_full_grad) and begins to average them over the ranks. A parameter
  /// without gradient on one rank counts as zero there; without any it gets
  /// none.
  virtual void start_reduce(ParamGroup& group) = 0;

  /// [collective] The end of a backward: finishes all reductions begun
  /// (set_reduced_grad) and returns once every rank has come to this point.
  virtual void finish_backward(const ParamGroup& root) = 0;

  /// After a failure: forgets reductions under way. Never throws.
  virtual void abandon() noexcept = 0;

  /// Of the trees made on this engine, 1 first. [collective] in that every rank
  /// makes them in the same order.
  std::uint32_t next_tree_number() { return ++num_trees_; }

  /// Time spent copying and summing gradients, waiting excluded.
  std::chrono::nanoseconds reduce_time() const { return reduce_time_; }

 protected:
  explicit ShardEngine(ProcessGroup group) : group_(std::move(group)) {}

  const ProcessGroup group_;
  std::chrono::nanoseconds reduce_time_{0};

 private:
  std::uint32_t num_trees_ = 0;
};

/// The engine of `group` on `device_type`, one per communicator and process:
/// shared memory where all ranks are on one host and compute on the CPU.
std::shared_ptr<ShardEngine> shard_engine_for(
    const ProcessGroup& group, const std::string& device_type);

} // namespace fsdp
