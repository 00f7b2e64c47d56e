#pragma once
// Which parameters a fully_shard call takes: those of the module and its
// submodules, down to nested units. Checks them before anything is changed.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "runtime/unit.h"

namespace fsdp {

/// A parameter by the name under which it is found first.
struct ManagedParam {
  std::string name; ///< from the module
  at::Tensor tensor;
};

struct ManagedModule {
  /// Children before parents, own parameters in registration order (FSDP2's
  /// order); a parameter tied inside the unit appears once.
  std::vector<ManagedParam> params;
  /// The units below, with their names from the module, in named_modules order.
  std::vector<std::pair<std::string, std::shared_ptr<Unit>>> nested_units;
};

/// Throws UsageError as fully_shard documents.
ManagedModule find_managed(
    torch::nn::Module& module, const FullyShardOptions& options);

} // namespace fsdp
