#pragma once
// bfloat16 and float16 to and from float32, rounding to nearest even, a NaN
// staying a NaN. Without branches, so that loops over them vectorise; without
// float subnormals, so that a flush-to-zero mode changes nothing.

#include <bit>
#include <cmath>
#include <cstdint>

namespace fsdp {

inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded);
}

inline float float16_to_float(std::uint16_t half) {
  const std::uint32_t word = static_cast<std::uint32_t>(half) << 16;
  const std::uint32_t sign = word & 0x80000000u;
  const std::uint32_t magnitude = word & 0x7fffffffu;
  // Moves exponent and mantissa to their places with a bias that is 112 too
  // large, so that infinity and NaN (exponent 31) end at 255.
  const float normal =
      std::bit_cast<float>((magnitude >> 3) + (224u << 23)) * 0x1p-112f;
  // A subnormal is an integer count of 2^-24: put under 0.5, whose ulp is that.
  const float subnormal =
      std::bit_cast<float>((magnitude >> 16) | (126u << 23)) - 0.5f;
  const float value = magnitude < (1u << 26) ? subnormal : normal;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: 13 mantissa bits are rounded away in integers; the carry
  // may reach the exponent, up to infinity.
  const std::uint32_t rebiased = magnitude - (112u << 23);
  const std::uint32_t normal =
      (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  // Below 2^-14 the result is a count of 2^-24: adding 0.5 rounds to it.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      (126u << 23);
  std::uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result; // 65520 and above
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return static_cast<std::uint16_t>(sign | result);
}

} // namespace fsdp
