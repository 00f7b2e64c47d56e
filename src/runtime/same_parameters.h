#pragma once
// Do all ranks mean the same parameters?

#include <vector>

#include "fsdp/process_group.h"
#include "runtime/managed_params.h"

namespace fsdp {

/// [collective] Throws MismatchError on every rank, naming the first parameter
/// that differs in name, dtype, shape or in being frozen, unless all ranks are
/// about to shard the same ones: rows of different parameters could fit
/// together by chance.
void require_same_parameters(
    const ProcessGroup& group, const std::vector<ManagedParam>& params);

} // namespace fsdp
