#pragma once
// The plain reference of the reductions: numbers by their bits, and a loop over
// the ranks. Shares no code with the library.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace fsdp::testing {

using Counts = std::vector<std::int64_t>;
using Bytes = std::vector<std::uint8_t>;

inline std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// `value` rounded to the nearest number with `digits` mantissa bits (the
/// leading one counted) and exponents down to `min_exponent`, ties to even.
inline double rounded(double value, int digits, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  return std::nearbyint(value / unit) * unit;
}

/// An element of a reducible dtype, as stored.
inline std::uint64_t encoded(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat16: {
      const double half = rounded(value, 11, -14);
      const std::uint64_t sign = std::signbit(half) ? 0x8000 : 0;
      const double size = std::abs(half);
      if (size > 65504) {
        return sign | 0x7c00;
      }
      if (size < 0x1p-14) {
        return sign | static_cast<std::uint64_t>(size * 0x1p24);
      }
      const int exponent = std::ilogb(size);
      const double fraction = std::ldexp(size, 10 - exponent);
      return sign + (static_cast<std::uint64_t>(exponent + 14) << 10) +
             static_cast<std::uint64_t>(fraction);
    }
    case DType::kBFloat16:
      return std::bit_cast<std::uint32_t>(
                 static_cast<float>(rounded(value, 8, -126))) >>
             16;
    case DType::kFloat32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::kInt64:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    default:
      return std::bit_cast<std::uint64_t>(value);
  }
}

inline double decoded(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kFloat16: {
      const double sign = (bits & 0x8000) != 0 ? -1 : 1;
      const int exponent = static_cast<int>(bits >> 10 & 31);
      const auto mantissa = static_cast<double>(bits & 1023);
      return exponent == 0 ? sign * mantissa * 0x1p-24
                           : sign * std::ldexp(1024 + mantissa, exponent - 25);
    }
    case DType::kBFloat16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16));
    case DType::kFloat32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case DType::kInt64:
      return static_cast<double>(static_cast<std::int64_t>(bits));
    default:
      return std::bit_cast<double>(bits);
  }
}

/// Elements by their bits, and their bytes as a backend sees them.
struct Elements {
  DType dtype;
  std::vector<std::uint64_t> bits;

  /// One byte more than needed, so that data() is not null.
  Bytes bytes() const {
    Bytes result(bits.size() * size_of(dtype) + 1);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      std::memcpy(result.data() + i * size_of(dtype), &bits[i], size_of(dtype));
    }
    return result;
  }
  bool are(const Bytes& stored) const { return stored == bytes(); }
};

/// Values of mixed size and sign, whose sum depends on the order.
inline Elements inputs_of(int rank, std::int64_t numel, DType dtype) {
  Elements elements{dtype, {}};
  std::uint64_t state = static_cast<std::uint64_t>(rank) * 7919 + 17;
  for (std::int64_t i = 0; i < numel; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto mantissa = static_cast<double>(state >> 40) - 0x1p23;
    const int scale = static_cast<int>(state >> 33 & 7);
    elements.bits.push_back(encoded(
        dtype,
        dtype == DType::kInt64 ? mantissa
                               : std::ldexp(mantissa, scale * 2 - 32)));
  }
  return elements;
}

/// The contract, element by element: rank 0 first, one rounding at the end.
inline std::uint64_t reduced(
    const std::vector<Elements>& by_rank,
    std::size_t i,
    ReduceOp op,
    DType output) {
  const DType dtype = by_rank[0].dtype;
  if (dtype == DType::kInt64 || dtype == DType::kFloat64) {
    double sum = decoded(dtype, by_rank[0].bits[i]);
    for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
      const double value = decoded(dtype, by_rank[rank].bits[i]);
      sum = op == ReduceOp::kMax ? std::max(sum, value) : sum + value;
    }
    if (op == ReduceOp::kAvg) {
      sum /= static_cast<double>(by_rank.size());
    }
    return encoded(output, sum);
  }
  auto sum = static_cast<float>(decoded(dtype, by_rank[0].bits[i]));
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const auto value =
        static_cast<float>(decoded(dtype, by_rank[rank].bits[i]));
    sum = op == ReduceOp::kMax ? std::max(sum, value) : sum + value;
  }
  if (op == ReduceOp::kAvg) {
    sum /= static_cast<float>(by_rank.size());
  }
  return encoded(output, sum);
}

struct Reduction {
  DType input;
  ReduceOp op;
};

constexpr Reduction kReductions[] = {
    {DType::kFloat32, ReduceOp::kSum},
    {DType::kFloat64, ReduceOp::kSum},
    {DType::kBFloat16, ReduceOp::kSum},
    {DType::kFloat16, ReduceOp::kSum},
    {DType::kInt64, ReduceOp::kSum},
    {DType::kFloat32, ReduceOp::kAvg},
    {DType::kFloat64, ReduceOp::kAvg},
    {DType::kBFloat16, ReduceOp::kAvg},
    {DType::kFloat16, ReduceOp::kAvg},
    {DType::kFloat32, ReduceOp::kMax},
    {DType::kInt64, ReduceOp::kMax}};

inline std::string name_of(const Reduction& reduction) {
  return std::string(fsdp::name_of(reduction.op)) + " of " +
         std::string(fsdp::name_of(reduction.input));
}

/// One reduction with the inputs and results of all ranks.
struct ReductionCase {
  Reduction reduction;
  DType output;
  Counts counts;
  std::vector<Elements> inputs;
  Elements expected;

  ReductionCase(const Reduction& what, DType output_dtype, Counts shards)
      : reduction(what), output(output_dtype), counts(std::move(shards)) {
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      inputs.push_back(
          inputs_of(static_cast<int>(rank), total(counts), what.input));
    }
    expected.dtype = output;
    for (std::size_t i = 0; i < inputs[0].bits.size(); ++i) {
      expected.bits.push_back(reduced(inputs, i, what.op, output));
    }
  }

  Elements expected_of(int rank) const {
    const auto begin =
        expected.bits.begin() +
        std::accumulate(counts.begin(), counts.begin() + rank, 0L);
    return {output, {begin, begin + counts[static_cast<std::size_t>(rank)]}};
  }
};

inline std::ostream& operator<<(std::ostream& out, const ReductionCase& c) {
  return out << name_of(c.reduction) << " to " << fsdp::name_of(c.output)
             << ", " << total(c.counts) << " elements";
}

} // namespace fsdp::testing
