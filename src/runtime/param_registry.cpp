#include "runtime/param_registry.h"

#include <mutex>
#include <unordered_map>

#include "runtime/sharded_param.h"

namespace fsdp {

namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, ShardedParam*> params;
};

Registry& registry() {
  // Never destroyed: modules kept in statics unregister at exit.
  static auto* instance = new Registry();
  return *instance;
}

} // namespace

ShardedParam* find_sharded_param(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().params.find(parameter.unsafeGetTensorImpl());
  return found == registry().params.end() ? nullptr : found->second;
}

void register_sharded_param(const at::Tensor& parameter, ShardedParam* param) {
  const std::lock_guard lock(registry().mutex);
  registry().params[parameter.unsafeGetTensorImpl()] = param;
}

void unregister_sharded_param(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  registry().params.erase(parameter.unsafeGetTensorImpl());
}

bool is_gathered(const at::Tensor& parameter) {
  const ShardedParam* param = find_sharded_param(parameter);
  return param && param->is_unsharded();
}

std::string describe_parameter(const at::Tensor& parameter) {
  const ShardedParam* param = find_sharded_param(parameter);
  return param ? param->describe() : "a parameter";
}

const ProcessGroup* shard_group_of(const at::Tensor& parameter) {
  const ShardedParam* param = find_sharded_param(parameter);
  return param ? &param->process_group() : nullptr;
}

} // namespace fsdp
