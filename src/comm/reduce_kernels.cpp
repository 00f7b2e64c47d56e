#include "comm/reduce_kernels.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "comm/error_text.h"
#include "comm/half.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

template <DType dtype>
struct Element;

template <>
struct Element<DType::kFloat32> {
  using Stored = float;
  using Accumulator = float;
  static float load(float value) { return value; }
  static float store(float value) { return value; }
};

template <>
struct Element<DType::kBFloat16> {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float load(std::uint16_t bits) { return bfloat16_to_float(bits); }
  static std::uint16_t store(float value) { return float_to_bfloat16(value); }
};

template <>
struct Element<DType::kFloat16> {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float load(std::uint16_t bits) { return float16_to_float(bits); }
  static std::uint16_t store(float value) { return float_to_float16(value); }
};

template <>
struct Element<DType::kFloat64> {
  using Stored = double;
  using Accumulator = double;
  static double load(double value) { return value; }
  static double store(double value) { return value; }
};

template <>
struct Element<DType::kInt64> {
  using Stored = std::int64_t;
  using Accumulator = std::int64_t;
  static std::int64_t load(std::int64_t value) { return value; }
  static std::int64_t store(std::int64_t value) { return value; }
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
  static std::int64_t apply(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(
        static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    return b > a || b != b ? b : a; // a NaN, once met, stays
  }
};

// 8 KiB of accumulators: stay in the first-level cache beside the input that
// streams past.
constexpr std::int64_t kBlock = 2048;

template <class In, class Out, class Op>
void reduce_blocks(
    std::span<const void* const> inputs,
    void* output,
    std::int64_t numel,
    int divisor) {
  using Accumulator = typename In::Accumulator;
  using Input = typename In::Stored;
  auto* out = static_cast<typename Out::Stored*>(output);
  Accumulator sums[kBlock];
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, numel - begin);
    bool is_first = true;
    for (const void* input : inputs) {
      if (input == nullptr) {
        continue;
      }
      const Input* in = static_cast<const Input*>(input) + begin;
      if (is_first) {
        for (std::int64_t i = 0; i < length; ++i) {
          sums[i] = In::load(in[i]);
        }
        is_first = false;
      } else {
        for (std::int64_t i = 0; i < length; ++i) {
          sums[i] = Op::apply(sums[i], In::load(in[i]));
        }
      }
    }
    if constexpr (std::is_floating_point_v<Accumulator>) {
      if (divisor != 1) {
        const auto by = static_cast<Accumulator>(divisor);
        for (std::int64_t i = 0; i < length; ++i) {
          sums[i] /= by;
        }
      }
    }
    for (std::int64_t i = 0; i < length; ++i) {
      if constexpr (std::is_same_v<typename Out::Accumulator, Accumulator>) {
        out[begin + i] = Out::store(sums[i]);
      } else {
        out[begin + i] = static_cast<typename Out::Stored>(sums[i]);
      }
    }
  }
}

template <DType input, class Op>
void reduce_to(
    std::span<const void* const> inputs,
    void* output,
    DType output_dtype,
    std::int64_t numel,
    int divisor) {
  using In = Element<input>;
  if (output_dtype == input) {
    reduce_blocks<In, In, Op>(inputs, output, numel, divisor);
  } else {
    reduce_blocks<In, Element<DType::kFloat32>, Op>(
        inputs, output, numel, divisor);
  }
}

} // namespace

void reduce_in_rank_order(
    std::span<const void* const> inputs,
    DType input_dtype,
    void* output,
    DType output_dtype,
    std::int64_t numel,
    ReduceOp op,
    int divisor) {
  if (op == ReduceOp::kMax) {
    if (input_dtype == DType::kInt64) {
      reduce_to<DType::kInt64, Max>(inputs, output, output_dtype, numel, 1);
    } else {
      reduce_to<DType::kFloat32, Max>(inputs, output, output_dtype, numel, 1);
    }
    return;
  }
  const int by = op == ReduceOp::kAvg ? divisor : 1;
  switch (input_dtype) {
    case DType::kFloat32:
      reduce_to<DType::kFloat32, Sum>(inputs, output, output_dtype, numel, by);
      break;
    case DType::kBFloat16:
      reduce_to<DType::kBFloat16, Sum>(inputs, output, output_dtype, numel, by);
      break;
    case DType::kFloat16:
      reduce_to<DType::kFloat16, Sum>(inputs, output, output_dtype, numel, by);
      break;
    case DType::kFloat64:
      reduce_to<DType::kFloat64, Sum>(inputs, output, output_dtype, numel, by);
      break;
    default:
      reduce_to<DType::kInt64, Sum>(inputs, output, output_dtype, numel, 1);
      break;
  }
}

namespace {

bool is_supported(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return is_real_floating(dtype) || dtype == DType::kInt64;
    case ReduceOp::kAvg:
      return is_real_floating(dtype);
    case ReduceOp::kMax:
      return dtype == DType::kFloat32 || dtype == DType::kInt64;
  }
  return false;
}

} // namespace

void check_reducible(int rank, const Request& request, DType output_dtype) {
  const std::string where = rank_prefix(rank) + request.describe();
  if (!is_supported(request.dtype, request.op)) {
    throw UsageError(
        where + ": " + std::string(name_of(request.op)) + " of " +
        std::string(name_of(request.dtype)) +
        " is not supported; sum and avg take float16, bfloat16, float32 and "
        "float64, sum also int64, max takes float32 and int64");
  }
  const bool is_widening =
      output_dtype == DType::kFloat32 && request.op != ReduceOp::kMax;
  if (output_dtype != request.dtype && !is_widening) {
    throw UsageError(
        where + ": the output cannot be " + std::string(name_of(output_dtype)) +
        "; it must have the input's dtype" +
        (request.op == ReduceOp::kMax ? "" : ", or float32"));
  }
}

} // namespace fsdp
