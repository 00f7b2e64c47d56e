#pragma once
// Sums and maxima over ranks, in rank order. Plain CPU memory, no LibTorch.

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace fsdp {

/// Reduces `numel` elements of `inputs`, rank by rank in the order given, into
/// `output` (which must not overlap an input, unless it is one of them and the
/// dtypes are equal). Null inputs are ranks without a contribution and are
/// skipped; at least one is not null. float16, bfloat16 and float32 accumulate
/// in float32, float64 in float64, int64 in int64 (wrapping); kAvg divides the
/// sum by `divisor`; then one rounding to `output_dtype`, to nearest even. A
/// NaN in an input is a NaN in the output, of kMax too. The dtypes must have
/// passed check_reducible. Any thread; touches nothing else.
void reduce_in_rank_order(
    std::span<const void* const> inputs,
    DType input_dtype,
    void* output,
    DType output_dtype,
    std::int64_t numel,
    ReduceOp op,
    int divisor);

/// Throws UsageError naming operation and dtypes unless `request.op` over
/// `request.dtype` into `output_dtype` is one that reduce_scatter's contract
/// lists.
void check_reducible(int rank, const Request& request, DType output_dtype);

} // namespace fsdp
