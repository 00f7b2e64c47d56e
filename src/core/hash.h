#pragma once
// FNV-1a, 64 bits: the same on every rank and in every build.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fsdp {

inline std::uint64_t fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211u;
  }
  return hash;
}

inline std::uint64_t fnv1a(std::string_view text) {
  return fnv1a(std::as_bytes(std::span(text)));
}

} // namespace fsdp
