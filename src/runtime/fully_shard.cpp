#include "fsdp/fully_shard.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>

#include "comm/c10d/run_together.h"
#include "fsdp/error.h"
#include "fsdp/hooked.h"
#include "fsdp/memory.h"
#include "fsdp/unit_phases.h"
#include "runtime/managed_params.h"
#include "runtime/no_recording.h"
#include "runtime/same_parameters.h"
#include "runtime/type_name.h"
#include "runtime/unit.h"

namespace fsdp {

namespace {

void check_policy(const MixedPrecisionPolicy& policy) {
  const std::pair<const char*, std::optional<c10::ScalarType>> fields[] = {
      {"param_dtype", policy.param_dtype},
      {"reduce_dtype", policy.reduce_dtype},
      {"output_dtype", policy.output_dtype}};
  for (const auto& [name, dtype] : fields) {
    if (dtype && *dtype != c10::kFloat && *dtype != c10::kDouble &&
        *dtype != c10::kBFloat16 && *dtype != c10::kHalf) {
      throw UsageError(
          std::string("fully_shard: mp_policy.") + name + " is " +
          c10::toString(*dtype) +
          "; it must be float32, float64, bfloat16 or float16");
    }
  }
}

detail::HookedBase& check_module(
    torch::nn::Module& module, const FullyShardOptions& options) {
  auto* hooked = dynamic_cast<detail::HookedBase*>(&module);
  if (!hooked) {
    throw UsageError(
        "fully_shard: module '" + type_name(module) +
        "' has no hooks around its forward; declare it with FSDP_MODULE(Name) "
        "in place of TORCH_MODULE(Name), hold a stock module as "
        "fsdp::HookedHolder<torch::nn::LinearImpl>, and shard the elements of "
        "a "
        "container, not the container");
  }
  if (hooked->fsdp_hooks()) {
    throw UsageError(
        "fully_shard was already applied to this module ('" +
        type_name(module) + "'); apply it once");
  }
  if (!options.mesh) {
    throw UsageError(
        "fully_shard: no mesh; pass {.mesh = fsdp::init_device_mesh(...)}");
  }
  if (options.mesh->ndim() != 1) {
    throw UsageError(
        "fully_shard: the mesh has " + std::to_string(options.mesh->ndim()) +
        " axes; pass a mesh of one axis");
  }
  check_policy(options.mp_policy);
  return *hooked;
}

Unit& require_unit(const torch::nn::Module& module, const char* caller) {
  const auto unit = unit_of(module);
  if (!unit) {
    throw UsageError(
        std::string(caller) + ": fully_shard was not called on module '" +
        type_name(module) + "'");
  }
  return *unit;
}

/// Calls f(Unit&) on the unit of `module` and, with recurse, of all below.
template <typename F>
void for_each_unit(
    const char* caller, torch::nn::Module& module, bool recurse, const F& f) {
  if (!recurse) {
    return f(require_unit(module, caller));
  }
  bool any = false;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (const auto unit = unit_of(*child)) {
      any = true;
      f(*unit);
    }
  }
  if (const auto unit = unit_of(module)) {
    any = true;
    f(*unit);
  }
  if (!any) {
    throw UsageError(
        std::string(caller) + ": no unit in module '" + type_name(module) +
        "' or below it; call fully_shard first");
  }
}

} // namespace

void fully_shard(
    const std::shared_ptr<torch::nn::Module>& module,
    const FullyShardOptions& options) {
  if (!module) {
    throw UsageError("fully_shard: the module is null; construct it first");
  }
  const NoRecording no_recording;
  detail::HookedBase& hooked = check_module(*module, options);
  const ProcessGroup group = options.mesh->group(0);
  ManagedModule managed;
  run_together(group, [&] {
    managed = find_managed(*module, options);
    require_same_parameters(group, managed.params);
  });
  auto engine = shard_engine_for(group, options.mesh->device_type());

  ParamGroup params;
  for (auto& param : managed.params) {
    params.params.push_back(std::make_unique<ShardedParam>(
        param.tensor,
        param.name,
        group,
        options.mp_policy,
        c10::Device(options.mesh->device_type())));
  }
  auto unit = std::make_shared<Unit>(std::move(params), options);
  const std::uint32_t number = engine->next_tree_number();
  auto tree = std::make_shared<UnitTree>(std::move(engine), number);
  std::vector<Unit*> units{unit.get()};
  for (const auto& nested : managed.nested_units) {
    units.push_back(nested.second.get());
  }
  tree->set_units(units);
  unit->join(tree, "");
  for (const auto& [name, nested] : managed.nested_units) {
    nested->join(tree, name);
  }
  hooked.set_fsdp_hooks(std::move(unit));
  empty_memory_cache(); // of the full parameters that are gone now
}

bool is_fully_sharded(const torch::nn::Module& module) {
  return unit_of(module) != nullptr;
}

void unshard(torch::nn::Module& module) {
  Unit& unit = require_unit(module, "unshard");
  unit.tree().unshard(unit);
}

void reshard(torch::nn::Module& module) {
  Unit& unit = require_unit(module, "reshard");
  if (unit.in_forward()) {
    throw UsageError(
        "reshard: the forward of " + unit.param_group().describe() +
        " is running and needs its parameters; call it afterwards");
  }
  unit.reshard();
}

void set_requires_gradient_sync(
    torch::nn::Module& module, bool requires_gradient_sync, bool recurse) {
  constexpr const char* kName = "set_requires_gradient_sync";
  for_each_unit(kName, module, recurse, [&](Unit& unit) {
    unit.set_requires_gradient_sync(requires_gradient_sync);
  });
}

void set_reshard_after_forward(
    torch::nn::Module& module, bool reshard_after_forward, bool recurse) {
  constexpr const char* kName = "set_reshard_after_forward";
  for_each_unit(kName, module, recurse, [&](Unit& unit) {
    unit.set_reshard_after_forward(reshard_after_forward);
  });
}

void set_prefetch_depth(torch::nn::Module& module, int depth) {
  if (depth < 0) {
    throw UsageError(
        "set_prefetch_depth: depth is " + std::to_string(depth) +
        "; it must be 0 or more");
  }
  for_each_unit("set_prefetch_depth", module, true, [&](Unit& unit) {
    unit.tree().set_prefetch_depth(depth);
  });
}

void set_unit_phase_observer(
    torch::nn::Module& module, UnitPhaseObserver observer) {
  for_each_unit("set_unit_phase_observer", module, true, [&](Unit& unit) {
    unit.tree().set_phase_observer(observer);
  });
}

void set_unit_observer(torch::nn::Module& module, UnitObserver observer) {
  for_each_unit("set_unit_observer", module, true, [&](Unit& unit) {
    unit.tree().set_observer(observer);
  });
}

} // namespace fsdp
