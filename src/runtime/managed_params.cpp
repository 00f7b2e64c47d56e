#include "runtime/managed_params.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "comm/c10d/scalar_type.h"
#include "comm/communicator.h"
#include "fsdp/error.h"
#include "fsdp/hooked.h"
#include "runtime/param_registry.h"

namespace fsdp {

namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

class Finder {
 public:
  Finder(torch::nn::Module& module, const FullyShardOptions& options)
      : root_(module), options_(options) {}

  ManagedModule find() {
    descend(root_, "");
    check_dtypes();
    return std::move(found_);
  }

 private:
  void descend(torch::nn::Module& module, const std::string& prefix) {
    if (!visited_modules_.insert(&module).second) {
      return;
    }
    for (const auto& child : module.named_children()) {
      const std::string name = join(prefix, child.key());
      if (auto unit = unit_of(*child.value())) {
        if (visited_modules_.insert(child.value().get()).second) {
          add_nested(name, *child.value(), std::move(unit));
        }
      } else {
        descend(*child.value(), name);
      }
    }
    for (const auto& param : module.named_parameters(/*recurse=*/false)) {
      if (visited_params_.insert(param.value().unsafeGetTensorImpl()).second) {
        check(join(prefix, param.key()), param.value());
        found_.params.push_back({join(prefix, param.key()), param.value()});
      }
    }
  }

  void add_nested(
      const std::string& name,
      torch::nn::Module& module,
      std::shared_ptr<Unit> unit) {
    if (options_.mesh && &unit->tree().engine().communicator() !=
                             &options_.mesh->group(0).communicator()) {
      throw UsageError(
          "fully_shard: nested unit '" + name +
          "' was sharded over another mesh; use one mesh for a whole model");
    }
    found_.nested_units.emplace_back(name, std::move(unit));
    // Units below a unit belong to its tree already.
    for (const auto& child : module.named_modules(name, false)) {
      if (auto below = unit_of(*child.value())) {
        visited_modules_.insert(child.value().get());
        found_.nested_units.emplace_back(child.key(), std::move(below));
      }
    }
  }

  void check(const std::string& name, const at::Tensor& param) {
    const std::string where = "fully_shard: parameter '" + name + "'";
    if (find_sharded_param(param)) {
      throw UsageError(
          where + " already belongs to another unit (" +
          describe_parameter(param) +
          "): call fully_shard on inner modules before outer ones, and tie "
          "parameters inside one unit only");
    }
    if (param.dim() == 0) {
      throw UsageError(
          where +
          " has no dimension to shard; make it a tensor of one element, shape "
          "[1]");
    }
    if (!param.is_contiguous()) {
      throw UsageError(
          where + " is not contiguous; register param.contiguous() instead");
    }
    if (!param.is_meta() &&
        param.device().str() != options_.mesh->device_type() &&
        c10::DeviceTypeName(param.device().type(), true) !=
            options_.mesh->device_type()) {
      throw UsageError(
          where + " is on device " + param.device().str() + ", the mesh on " +
          options_.mesh->device_type() +
          "; move the module to the mesh's device");
    }
    if (param.is_quantized()) {
      throw UsageError(
          where + " of dtype " + c10::toString(param.scalar_type()) +
          " cannot be sharded; keep it as a buffer");
    }
    const DType dtype = to_dtype(param.scalar_type());
    if (param.requires_grad() && !is_real_floating(dtype)) {
      throw UsageError(
          where + " of dtype " + std::string(name_of(dtype)) +
          " requires grad, and gradients of that dtype cannot be averaged; use "
          "a real floating dtype or set_requires_grad(false)");
    }
  }

  void check_dtypes() const {
    const ManagedParam* first = nullptr;
    for (const auto& param : found_.params) {
      if (!param.tensor.requires_grad()) {
        continue;
      }
      if (first && first->tensor.scalar_type() != param.tensor.scalar_type()) {
        throw UsageError(
            "fully_shard: the trainable parameters of one unit must have one "
            "dtype: '" +
            first->name + "' is " + c10::toString(first->tensor.scalar_type()) +
            ", '" + param.name + "' is " +
            c10::toString(param.tensor.scalar_type()) +
            "; convert one, or make them separate units");
      }
      first = first ? first : &param;
    }
  }

  torch::nn::Module& root_;
  const FullyShardOptions& options_;
  ManagedModule found_;
  std::unordered_set<const torch::nn::Module*> visited_modules_;
  std::unordered_set<const c10::TensorImpl*> visited_params_;
};

} // namespace

ManagedModule find_managed(
    torch::nn::Module& module, const FullyShardOptions& options) {
  return Finder(module, options).find();
}

std::shared_ptr<Unit> unit_of(const torch::nn::Module& module) {
  const auto* hooked = dynamic_cast<const detail::HookedBase*>(&module);
  return hooked ? std::dynamic_pointer_cast<Unit>(hooked->fsdp_hooks())
                : nullptr;
}

} // namespace fsdp
