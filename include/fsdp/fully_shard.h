#pragma once
// Sharding the parameters, gradients and optimizer state of a module
// (FSDP2 fully_shard, torch.distributed.fsdp). docs/architecture.md tells the
// life of a unit.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/device_mesh.h"
#include "fsdp/export.h"
#include "fsdp/mixed_precision.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace fsdp {

struct FullyShardOptions {
  /// Required, 1-D: the ranks that share the parameters.
  std::optional<DeviceMesh> mesh = std::nullopt;
  /// Free the gathered parameters after the forward and gather them again for
  /// the backward. Unset: true, except for the root (the outermost module that
  /// fully_shard was called on), which is needed again at once. A forward
  /// without grad reshards the root too.
  std::optional<bool> reshard_after_forward = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
};

/// [collective over the mesh] Shards the parameters of `module` and of its
/// submodules that no earlier call took, as one unit: gathered together before
/// the module's forward, their gradients reduced together in its backward. Call
/// it on the inner modules first, on the whole model last.
///
/// Row i of a parameter goes to rank i / ceil(n / world). Afterwards each
/// parameter holds its rank's rows only (maybe none); between the unit's
/// forward and its release it has its full shape, in the policy's dtype.
/// Gradients are the mean over the mesh's ranks. An existing `.grad` is
/// dropped. Each rank keeps its own rows of its own model: build it with the
/// same seed everywhere, or without memory (fsdp/meta_init.h).
///
/// Where the ranks share memory, it puts the counting allocator in place
/// (fsdp/memory.h), which lets ranks read each other's gradients where autograd
/// left them; where another CPU allocator has priority they are copied.
///
/// The module must be an FSDP_MODULE (fsdp/hooked.h) or Hooked<...>, and
/// outlive the backwards of its losses. Throws, before anything is changed,
/// MismatchError where the ranks' parameters differ in name, dtype, shape or in
/// being frozen, and UsageError: null, module without hooks, applied twice,
/// child after parent, a parameter with no dimension or not contiguous, or
/// reachable from another unit, no mesh or one that is not 1-D.
FSDP_API void fully_shard(
    const std::shared_ptr<torch::nn::Module>& module,
    const FullyShardOptions& options);

/// For a holder: `fully_shard(block, {...})`.
template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
void fully_shard(const Holder& holder, const FullyShardOptions& options) {
  fully_shard(
      std::static_pointer_cast<torch::nn::Module>(holder.ptr()), options);
}

// The functions below are called on the rank's own thread. Where they need a
// unit, `module` is one that fully_shard was called on, or with `recurse` one
// that has units below it; otherwise they throw UsageError. Those marked
// [collective] are called by every rank of the mesh, in one order.

/// True if fully_shard was called on this very module.
FSDP_API bool is_fully_sharded(const torch::nn::Module& module);

/// [collective] Gathers the parameters of this unit (not of nested ones), e.g.
/// to read them. They stay gathered until reshard() or the next forward's end.
FSDP_API void unshard(torch::nn::Module& module);
/// Releases them again; local. Throws UsageError while the unit's own forward
/// runs.
FSDP_API void reshard(torch::nn::Module& module);

/// While false, backward keeps each rank's full gradients (in the reduce dtype)
/// instead of reducing them; the next backward with true reduces the sum of
/// all. For gradient accumulation. Local, but every rank of the mesh calls it
/// alike. What is kept is not in `.grad`: zero_grad() does not drop it, the
/// next reduction takes it along.
FSDP_API void set_requires_gradient_sync(
    torch::nn::Module& module,
    bool requires_gradient_sync,
    bool recurse = true);

/// Changes the option of fully_shard; takes effect on the next forward. Local,
/// but every rank of the mesh calls it alike.
FSDP_API void set_reshard_after_forward(
    torch::nn::Module& module, bool reshard_after_forward, bool recurse = true);

/// How many units are gathered ahead of use, in the order recorded in the
/// forward (0: none; default 1). Applies to the whole tree of `module`'s root.
/// Local, but every rank of the mesh calls it alike. Throws UsageError for a
/// negative depth.
FSDP_API void set_prefetch_depth(torch::nn::Module& module, int depth);

/// One parameter as the shard group holds it.
struct ShardInfo {
  std::string name; ///< qualified from the module that was asked
  std::vector<std::int64_t> full_sizes;
  std::int64_t row_begin = 0; ///< this rank's rows
  std::int64_t num_rows = 0;
};

/// The sharded parameters below `module`, in the order of named_parameters();
/// parameters that no unit manages are left out.
FSDP_API std::vector<ShardInfo> shard_infos(const torch::nn::Module& module);

/// [collective] The full value of every parameter below `module` (sharded or
/// not) by qualified name, in its own dtype, on every rank. For tests, small
/// models and exports; it holds the whole model.
FSDP_API std::vector<std::pair<std::string, at::Tensor>> full_parameters(
    torch::nn::Module& module);

/// What the runtime has done. Counts are of the units below `module` (its own
/// included) since each was sharded; times are of all that this rank did in
/// their process group.
struct RuntimeCounters {
  std::int64_t num_unshards = 0;   ///< gathers of a unit
  std::int64_t num_reductions = 0; ///< reductions of a unit's gradients
  double wait_ms = 0;              ///< blocked on other ranks, in any call
  double reduce_ms = 0; ///< copying and summing gradients, without waiting
};
FSDP_API RuntimeCounters runtime_counters(const torch::nn::Module& module);

/// What happened to a unit, for tests and traces.
enum class UnitEvent {
  kUnshard,     ///< a gather has begun
  kReshard,     ///< the gathered parameters are gone
  kReduce,      ///< a reduction of gradients has begun
  kWaitUnshard, ///< the parameters show all their rows
};

/// `observer` is called on the rank's own thread at each event of the units
/// below `module`'s root, with the unit's qualified name ("" is the root), and
/// must not throw. Pass nullptr to end it.
using UnitObserver =
    std::function<void(UnitEvent event, const std::string& unit)>;
FSDP_API void set_unit_observer(
    torch::nn::Module& module, UnitObserver observer);

} // namespace fsdp
