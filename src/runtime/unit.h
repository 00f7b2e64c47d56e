#pragma once
// One fully_shard call: the hooks around its module's forward and backward
// (FSDP2's FSDPState and FSDPParamGroup).
//
//   kSharded --start_unshard--> kUnsharding --unshard--> kUnsharded
//   --reshard-->
//
// forward   pre_forward unshards; post_forward reshards, unless the unit is
// kept
//           for the backward
// backward  the first gradient of an output (or, should no output be used, of a
//           parameter) unshards; the first gradient of a non-leaf input
//           reshards and starts the reduction: by then everything inside the
//           unit has run
// end       what is left is reduced and resharded before backward() returns

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "runtime/param_group.h"
#include "runtime/unit_tree.h"

namespace fsdp {

class Unit final : public detail::ForwardHooks,
                   public std::enable_shared_from_this<Unit> {
 public:
  Unit(ParamGroup group, const FullyShardOptions& options);
  ~Unit() override;

  ParamGroup& param_group() { return group_; }
  const ParamGroup& param_group() const { return group_; }
  const std::string& name() const { return group_.unit; }
  UnitTree& tree() const { return *tree_; }
  void join(std::shared_ptr<UnitTree> tree, const std::string& name);

  void pre_forward(
      const std::vector<at::Tensor*>& inputs,
      const std::vector<at::Tensor*>& fixed) override;
  void post_forward(const std::vector<at::Tensor*>& outputs) override;
  void forward_failed() noexcept override;

  std::int64_t num_unshards() const { return num_unshards_; }
  std::int64_t num_reductions() const { return num_reductions_; }

  bool in_forward() const { return !open_uses_.empty(); }
  bool is_unsharding() const { return state_ == State::kUnsharding; }
  void start_unshard();
  void unshard();
  void reshard();

  void set_requires_gradient_sync(bool sync) { sync_gradients_ = sync; }
  void set_reshard_after_forward(bool reshard) {
    options_.reshard_after_forward = reshard;
  }

  // The end of a backward, called by the tree on all its units.
  void end_backward_phase();
  /// Starts the reduction unless it has been; also of gradients that came late.
  void reduce_leftovers();
  void end_backward();
  /// Back to sharded after a failure.
  void abandon() noexcept;

 private:
  enum class State { kSharded, kUnsharding, kUnsharded };
  /// One forward of the unit in grad mode, until its backward has passed.
  struct Use {
    std::size_t number = 0; ///< in the tree's order
    // The backwards that have come to it and that have passed it: a retained
    // graph is gone through again.
    std::uint64_t begun_in = 0;
    std::uint64_t passed_in = 0;
  };

  bool is_root() const;
  bool reshards_after_forward() const;
  void mark_gather(bool begins) const;
  void cast_inputs(const std::vector<at::Tensor*>& inputs) const;
  void cast_outputs(const std::vector<at::Tensor*>& outputs) const;
  void hook_inputs(const std::vector<at::Tensor*>& inputs);
  void hook_outputs(const std::vector<at::Tensor*>& outputs);
  void set_grad_hooks();

  void pre_backward(const std::shared_ptr<Use>& use);
  void begin_use(Use& use);
  void enter_backward();
  void before_grad();
  void after_grad(std::size_t param);
  void pass_use(const std::shared_ptr<Use>& use);
  void start_reduction();

  ParamGroup group_;
  FullyShardOptions options_;
  std::shared_ptr<UnitTree> tree_;
  State state_ = State::kSharded;
  bool sync_gradients_ = true;
  std::int64_t num_unshards_ = 0;
  std::int64_t num_reductions_ = 0;

  /// Of the forwards under way, the outermost first (a module may call itself);
  /// null without grad.
  std::vector<std::shared_ptr<Use>> open_uses_;
  bool ever_used_with_grad_ = false;
  /// From the first use after a backward to the end of the next one.
  struct Pass {
    std::size_t num_uses = 0;
    std::size_t num_passed = 0;
    std::size_t num_begun = 0; ///< and not passed: they need the parameters
    bool in_backward = false;
    bool reduction_started = false;
    bool is_phase_open = false; ///< UnitPhase::kBackward
  } pass_;
};

/// The unit of `module`, or null if fully_shard was not called on it.
std::shared_ptr<Unit> unit_of(const torch::nn::Module& module);

} // namespace fsdp
