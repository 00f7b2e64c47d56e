#pragma once
// The operations that combine one value of each rank.

#include <cstdint>
#include <string_view>

#include "fsdp/export.h"

namespace fsdp {

/// How the values of the ranks become one.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMax };

/// "sum", "avg", "max".
FSDP_API std::string_view name_of(ReduceOp op);

} // namespace fsdp
