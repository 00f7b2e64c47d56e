#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

/// How the values of the ranks become one.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMax };

/// "sum", "avg", "max".
std::string_view name_of(ReduceOp op);

} // namespace fsdp
