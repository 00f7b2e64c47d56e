#pragma once

#include <cstddef>

namespace fsdp {

/// The smallest multiple of `alignment` that is at least `value`.
constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

} // namespace fsdp
