#pragma once
// One parameter of a unit: its rank's rows, its gathered form, its gradients.
//
// The registered parameter is one TensorImpl for ever (the module's member and
// its registration are the same object); `become` switches what it shows:
//
//   sharded    this rank's rows, in the parameter's own dtype
//   unsharded  all rows, in the compute dtype, on one persistent StorageImpl
//              that the engine points to gathered memory. Views that autograd
//              saved share that storage, so they see the data again after the
//              next gather. While released it has no memory, and reading it
//              raises a text that names unit and parameter.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/shard_math.h"
#include "fsdp/mixed_precision.h"
#include "fsdp/process_group.h"
#include "runtime/autograd_internals.h"

namespace fsdp {

class ShardedParam {
 public:
  /// Called around the arrival of the parameter's gradient in a backward.
  struct GradHooks {
    std::function<void()> before;
    std::function<void()> after;
  };

  /// Shards `parameter`, which must be contiguous and have a dimension, over
  /// `group`: afterwards it shows this rank's rows, and has no gradient.
  /// `device`: the mesh's; a parameter that is on the meta device gets its
  /// memory there, later.
  ShardedParam(
      at::Tensor parameter,
      std::string name,
      ProcessGroup group,
      const MixedPrecisionPolicy& policy,
      c10::Device device);
  ~ShardedParam();
  ShardedParam(const ShardedParam&) = delete;
  ShardedParam& operator=(const ShardedParam&) = delete;

  const std::string& name() const { return name_; } ///< within its unit
  const ProcessGroup& process_group() const { return group_; }
  const at::Tensor& registered() const { return registered_; }
  const at::Tensor& local() const { return local_; } ///< this rank's rows
  const std::vector<std::int64_t>& full_sizes() const { return full_sizes_; }
  RowRange rows(int rank) const;
  RowRange rows() const { return rows(group_.rank()); }
  std::int64_t row_numel() const { return row_numel_; }
  std::int64_t full_numel() const { return full_sizes_[0] * row_numel_; }
  c10::ScalarType own_dtype() const { return local_.scalar_type(); }
  c10::ScalarType compute_dtype() const;
  c10::ScalarType reduce_dtype() const;
  std::size_t compute_bytes() const; ///< of the unsharded parameter
  /// Writes this rank's rows, in the compute dtype, to their place in the full
  /// parameter, which begins at `full` on `device`.
  void copy_rows_to(std::byte* full, c10::Device device) const;
  bool requires_grad() const { return registered_.requires_grad(); }
  bool is_unsharded() const { return is_unsharded_; }

  // A parameter that came on the meta device.

  c10::Device device() const { return device_; }
  /// With all its rows, until it is given memory; undefined if it has some.
  const at::Tensor& awaited() const { return awaited_; }
  /// Keeps this rank's rows of `full`, in the dtype that the parameter shows.
  void give_full_value(const at::Tensor& full);
  /// `rows`: of the shape and dtype that the parameter shows.
  void give_rows(at::Tensor rows);

  void set_owner(std::string unit) { unit_ = std::move(unit); }
  /// From the root module.
  std::string qualified_name() const {
    return unit_.empty() ? name_ : unit_ + "." + name_;
  }
  /// "parameter 'weight' of unit 'layers.0'".
  std::string describe() const;

  /// Called from then on; set before the first to_unsharded().
  void set_grad_hooks(GradHooks hooks) { grad_hooks_ = std::move(hooks); }

  /// Shows the full parameter, whose compute_bytes() are at `data`: memory of
  /// the engine that stays valid until to_sharded().
  void to_unsharded(const std::byte* data);
  void to_sharded();
  /// While unsharded: takes part in the next graphs if the user has unfrozen it
  /// meanwhile.
  void follow_requires_grad();

  /// Compares what the sharded parameter shows with what to_sharded left and
  /// takes over what the user put there (module.to(dtype), load); returns true
  /// if the compute dtype changed with it. Throws UsageError for a tensor of
  /// another shape.
  bool adopt_user_changes();

  // Gradients, in the order of a backward.

  /// Before the first gradient of a backward arrives: puts the sharded .grad of
  /// earlier backwards aside, so that autograd does not add to it.
  void begin_backward();
  /// Takes the gradient that autograd left in .grad, if any.
  void take_grad();
  /// Keeps what was taken, unreduced, for a later backward; in reduce dtype.
  void keep_unreduced();
  /// What is to be reduced: taken plus kept, full shape, contiguous; undefined
  /// if there is none. Gives it up.
  at::Tensor release_full_grad();
  bool has_taken_grad() const { return taken_.defined(); }
  /// Whether the unit's reduction must include it, with or without a gradient
  /// here; the same on every rank.
  bool is_reduced() const { return requires_grad() || kept_.defined(); }
  /// `grad`: the mean over ranks of this rank's rows.
  void set_reduced_grad(at::Tensor grad);
  /// Puts .grad back: what was put aside plus what was reduced.
  void end_backward();
  /// Forgets everything that a failed backward left, the kept gradients too;
  /// what was put aside becomes .grad again.
  void abandon_backward();

 private:
  std::string name_;
  std::string unit_;
  ProcessGroup group_;
  MixedPrecisionPolicy policy_;
  c10::Device device_;
  GradHooks grad_hooks_;
  at::Tensor registered_;
  at::Tensor local_;
  at::Tensor awaited_;
  std::vector<std::int64_t> full_sizes_;
  std::int64_t row_numel_ = 1;
  bool is_unsharded_ = false;
  at::Tensor unsharded_; ///< on the persistent storage
  std::unique_ptr<PinnedAccumulator> accumulator_; ///< while unsharded
  std::unique_ptr<PinnedAccumulator> shard_guard_; ///< while sharded: throws

  at::Tensor put_aside_; ///< sharded, of earlier backwards
  at::Tensor taken_;     ///< full, compute dtype, of this backward
  at::Tensor kept_;      ///< full, reduce dtype, of backwards without sync
  at::Tensor reduced_;   ///< sharded, of this backward

  void show_shard();
  void make_unsharded_tensor();
  std::string not_gathered_text() const;
};

} // namespace fsdp
