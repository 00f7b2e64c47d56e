#pragma once
// Which registered parameters of this process are sharded, and what they look
// like now. Keyed by the parameter's identity (TensorImpl), which never changes
// while a unit manages it. Thread-safe: ranks may be threads.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/process_group.h"

namespace fsdp {

class ShardedParam;

/// The sharded parameter behind `parameter`, or null if no unit manages it.
/// Valid as long as the unit's module lives.
ShardedParam* find_sharded_param(const at::Tensor& parameter);

/// For ShardedParam only.
void register_sharded_param(const at::Tensor& parameter, ShardedParam* param);
void unregister_sharded_param(const at::Tensor& parameter);

/// True if a unit manages `parameter` and holds it gathered at the moment, so
/// that it is not the rank's shard.
bool is_gathered(const at::Tensor& parameter);

/// For texts: "parameter 'weight' of unit 'layers.0'", or "a parameter".
std::string describe_parameter(const at::Tensor& parameter);

/// The shard group that `parameter` is split over, or null if none.
const ProcessGroup* shard_group_of(const at::Tensor& parameter);

} // namespace fsdp
