#pragma once
// Whole numbers that refuse to overflow: a plan of nonsense is an error, never
// a small number.

#include <concepts>
#include <cstdint>

#include "fsdp/error.h"

namespace fsdp::plan {

/// Bytes, elements or calls. Sums and products that 64 bits cannot hold throw
/// ConfigError.
class Count {
 public:
  constexpr Count(std::integral auto value)
      : value_(static_cast<std::int64_t>(value)) {}

  constexpr std::int64_t value() const { return value_; }

  friend Count operator+(Count a, Count b) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? refuse()
                                                            : Count(sum);
  }

  friend Count operator*(Count a, Count b) {
    std::int64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product)
               ? refuse()
               : Count(product);
  }

  Count& operator+=(Count other) { return *this = *this + other; }

 private:
  [[noreturn]] static Count refuse() {
    throw ConfigError(
        "the plan counts more than 9223372036854775807 bytes: lower the sizes "
        "of the model, the batch, the sequence or the accumulation");
  }

  std::int64_t value_;
};

} // namespace fsdp::plan
