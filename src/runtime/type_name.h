#pragma once

#include <torch/nn/module.h>

#include <string>

#include "fsdp/hooked.h"

namespace fsdp {

/// The user's name of the module's type: "Block", whatever holds its hooks.
inline std::string type_name(const torch::nn::Module& module) {
  const auto* hooked = dynamic_cast<const detail::HookedBase*>(&module);
  return hooked ? hooked->fsdp_type_name() : module.name();
}

} // namespace fsdp
