#pragma once
// The engine over collectives: any process group, several hosts, accelerators.
//
// A gather writes this rank's rows to their places in a pooled block, and the
// other ranks' rows come straight to theirs. A reduction packs the full
// gradients rank by rank and reduce-scatters them. Both are begun early and
// waited for late, so that they overlap with compute where the backend can.

#include <c10/core/Device.h>

#include <deque>

#include "runtime/gather_pool.h"
#include "runtime/packed_layout.h"
#include "runtime/shard_engine.h"

namespace fsdp {

class CollectiveEngine final : public ShardEngine {
 public:
  CollectiveEngine(ProcessGroup group, c10::Device device);
  ~CollectiveEngine() override;

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
  struct GroupSlot;
  /// A reduction under way; its buffers live until it is finished.
  struct Reduction {
    std::vector<ShardedParam*> params;
    std::vector<bool> has_grad; ///< here
    PackedLayout layout;        ///< in elements
    at::Tensor packed;          ///< all ranks' rows, wire dtype
    at::Tensor means;           ///< own rows, result dtype
    std::shared_ptr<Work> work;
  };
  /// Waits for the end of the backward, when it is known whether any rank had a
  /// gradient.
  struct Mean {
    ShardedParam* param;
    at::Tensor value;
    bool has_grad; ///< here
  };

  GroupSlot& slot_of(ParamGroup& group) const;
  void pack_grads(Reduction& reduction) const;
  void finish_oldest();

  c10::Device device_;
  GatherPool pool_;
  std::deque<Reduction> under_way_;
  std::vector<Mean> means_;
};

} // namespace fsdp
