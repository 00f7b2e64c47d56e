#pragma once
// The state of an optimizer by parameter name, to keep it and to go on with it.
// Every rank holds the state of its own rows, as its parameters are; nothing is
// communicated. (torch.distributed.checkpoint.state_dict: get_ and
// set_optimizer_state_dict.)

#include <map>
#include <string>
#include <vector>

#include "fsdp/export.h"
#include "fsdp/optim.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// One parameter's tensors under torch.optim's names: "exp_avg", "exp_avg_sq"
/// (of the parameter's local shape and dtype) and "step" (0-dim float32) of
/// Adam and AdamW, "momentum_buffer" of SGD with momentum. Empty before the
/// parameter's first gradient.
using ParameterState = std::map<std::string, at::Tensor>;

/// By the parameter's qualified name from the module.
using OptimizerState = std::map<std::string, ParameterState>;

/// Copies of the state of every parameter that `optimizer` steps. Throws
/// UsageError for a parameter that is not below `module` or is gathered.
FSDP_API OptimizerState
optimizer_state(const torch::nn::Module& module, const Optimizer& optimizer);

/// Goes on with `state` (copied). Throws UsageError, and changes nothing, for a
/// tensor of another shape or dtype, and if `strict` for a parameter without
/// state, with a part of it, or a name that the optimizer does not step. If not
/// strict such parameters begin anew, as before their first step, and such
/// names are ignored; all of them are returned.
FSDP_API std::vector<std::string> load_optimizer_state(
    const torch::nn::Module& module,
    Optimizer& optimizer,
    const OptimizerState& state,
    bool strict = true);

} // namespace fsdp
