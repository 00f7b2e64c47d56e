#include "comm/reduce_kernels.h"

#include <gmock/gmock.h>

#include <bit>
#include <limits>

#include "comm/half.h"
#include "fsdp/error.h"
#include "support/comm_conformance_reference.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;

TEST(Half, EveryFloat16IsReadExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float16_to_float(half);
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(value, decoded(DType::kFloat16, bits)) << std::hex << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << std::hex << bits;
    } else if ((bits & 0x3ff) != 0) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
    } else {
      ASSERT_TRUE(std::isinf(value)) << std::hex << bits;
    }
  }
}

// Each half, both neighbours of the ties on its sides, and the ties.
TEST(Half, Float16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = decoded(DType::kFloat16, bits);
    const double high =
        bits == 0x7bff ? 65536.0 : decoded(DType::kFloat16, bits + 1);
    const auto tie = static_cast<float>((low + high) / 2);
    for (const float value :
         {static_cast<float>(low),
          std::nextafter(tie, 0.0f),
          tie,
          std::nextafter(tie, 1e9f)}) {
      ASSERT_EQ(float_to_float16(value), encoded(DType::kFloat16, value))
          << value;
      ASSERT_EQ(float_to_float16(-value), encoded(DType::kFloat16, -value))
          << -value;
    }
  }
}

TEST(Half, Float16KeepsInfinityNaNAndTheTiniest) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_float16(infinity), 0x7c00);
  EXPECT_EQ(float_to_float16(-infinity), 0xfc00);
  EXPECT_EQ(float_to_float16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_float16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_float16(1e30f), 0x7c00);
  EXPECT_EQ(float_to_float16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(
      float_to_float16(std::numeric_limits<float>::quiet_NaN()) & 0x7e00,
      0x7e00);
  // A NaN whose payload is all in the bits that are dropped.
  EXPECT_EQ(float_to_float16(std::bit_cast<float>(0x7f800001u)), 0x7e00);
}

TEST(Half, BFloat16RoundsToNearestEvenAndKeepsNaN) {
  for (std::uint32_t high = 0; high < 0x7f80; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u}) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      const bool goes_up = low > 0x8000 || (low == 0x8000 && (high & 1) != 0);
      ASSERT_EQ(float_to_bfloat16(value), high + (goes_up ? 1 : 0));
      ASSERT_EQ(float_to_bfloat16(-value), 0x8000 + high + (goes_up ? 1 : 0));
    }
  }
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0xffffffffu)), 0xffff);
  EXPECT_EQ(bfloat16_to_float(0x3fc0), 1.5f);
}

TEST(ReduceKernels, SkipRanksWithoutAContribution) {
  const float a[] = {1, 2, 3};
  const float b[] = {10, 20, 30};
  float sum[3];
  const void* inputs[] = {nullptr, a, nullptr, b};
  const auto reduce = [&](ReduceOp op) {
    reduce_in_rank_order(
        inputs, DType::kFloat32, sum, DType::kFloat32, 3, op, 4);
  };
  reduce(ReduceOp::kSum);
  EXPECT_THAT(sum, ElementsAre(11, 22, 33));
  reduce(ReduceOp::kAvg);
  EXPECT_THAT(sum, ElementsAre(11 / 4.0f, 22 / 4.0f, 33 / 4.0f));
  reduce(ReduceOp::kMax);
  EXPECT_THAT(sum, ElementsAre(10, 20, 30));
}

TEST(ReduceKernels, RoundOnceAtTheEnd) {
  // 256 + 1 is 256 in bfloat16 (ulp 2), so a sum that rounds at each rank
  // stays.
  const std::uint16_t large[] = {float_to_bfloat16(256)};
  const std::uint16_t one[] = {float_to_bfloat16(1)};
  const void* inputs[] = {large, one, one, one};
  std::uint16_t half = 0;
  float full = 0;
  reduce_in_rank_order(
      inputs, DType::kBFloat16, &half, DType::kBFloat16, 1, ReduceOp::kSum, 1);
  reduce_in_rank_order(
      inputs, DType::kBFloat16, &full, DType::kFloat32, 1, ReduceOp::kAvg, 4);
  EXPECT_EQ(bfloat16_to_float(half), 260.0f); // 259, a tie, to even
  EXPECT_EQ(full, 64.75f);
}

TEST(ReduceKernels, WriteIntoOneOfTheirInputs) {
  std::vector<float> own(5'000);
  std::vector<float> other(5'000);
  std::vector<float> expected(5'000);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = static_cast<float>(i) * 0.37f;
    other[i] = static_cast<float>(i % 97) - 31.5f;
    expected[i] = own[i] + other[i];
  }
  const void* inputs[] = {own.data(), other.data()};
  reduce_in_rank_order(
      inputs,
      DType::kFloat32,
      own.data(),
      DType::kFloat32,
      5'000,
      ReduceOp::kSum,
      1);
  EXPECT_EQ(own, expected);
}

TEST(ReduceKernels, KeepASignedZeroAndWrapIntegers) {
  const float zero[] = {-0.0f};
  const void* zeros[] = {zero, zero};
  float sum = 1;
  reduce_in_rank_order(
      zeros, DType::kFloat32, &sum, DType::kFloat32, 1, ReduceOp::kSum, 1);
  EXPECT_TRUE(std::signbit(sum));
  const std::int64_t most[] = {std::numeric_limits<std::int64_t>::max()};
  const std::int64_t one[] = {1};
  const void* integers[] = {most, one};
  std::int64_t wrapped = 0;
  reduce_in_rank_order(
      integers, DType::kInt64, &wrapped, DType::kInt64, 1, ReduceOp::kSum, 1);
  EXPECT_EQ(wrapped, std::numeric_limits<std::int64_t>::min());
}

TEST(ReduceKernels, MaximaOfNaNAreNaNWhereverItIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {nan, 1, 1, -2};
  const float b[] = {1, nan, 2, -3};
  const void* inputs[] = {a, b};
  float result[4];
  reduce_in_rank_order(
      inputs, DType::kFloat32, result, DType::kFloat32, 4, ReduceOp::kMax, 1);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_TRUE(std::isnan(result[1]));
  EXPECT_EQ(result[2], 2);
  EXPECT_EQ(result[3], -2);
}

// As torch::set_flush_denormal(true) leaves a thread.
class FlushToZero {
 public:
  FlushToZero() { set(before_ | 0x8040); }
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
  ~FlushToZero() { set(before_); }

 private:
#if defined(__SSE__)
  static unsigned get() { return __builtin_ia32_stmxcsr(); }
  static void set(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#else
  static unsigned get() { return 0; }
  static void set(unsigned) {}
#endif
  const unsigned before_ = get();
};

TEST(ReduceKernels, KeepFloat16SubnormalsWhenTheThreadFlushesToZero) {
  const FlushToZero mode;
  const std::uint16_t tiny[] = {1, 2, 0x3ff, 0x8001};
  const void* inputs[] = {tiny, tiny};
  std::uint16_t sum[4];
  reduce_in_rank_order(
      inputs, DType::kFloat16, sum, DType::kFloat16, 4, ReduceOp::kSum, 1);
  EXPECT_THAT(sum, ElementsAre(2, 4, 0x7fe, 0x8002));
}

} // namespace
} // namespace fsdp::testing
