#pragma once
// Clipping by one global norm over all shards (torch.nn.utils.clip_grad_norm_).

#include "fsdp/export.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// [collective over the mesh of `module`'s units] The p-norm of all gradients
/// below `module` as if they were one vector, the same number on every rank;
/// shards are combined over ranks, parameters that no unit manages count once.
/// Scales every gradient by min(1, max_norm / (norm + 1e-6)). norm_type > 0;
/// infinity for the largest absolute value. With `error_if_nonfinite` a NaN or
/// infinite norm throws Error, naming the ranks whose local norm is not finite,
/// on every rank, and the gradients stay as they were; without it nothing is
/// scaled by such a norm either: the norm is returned and the caller decides.
/// Call it after the backward and before the optimizer's step, on every rank.
/// Throws UsageError where no unit manages any of the parameters, for a
/// negative max_norm and a norm_type that is not above 0.
FSDP_API double clip_grad_norm_(
    torch::nn::Module& module,
    double max_norm,
    double norm_type = 2.0,
    bool error_if_nonfinite = false);

} // namespace fsdp
