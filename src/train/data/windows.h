#pragma once
// Which tokens a step trains on: a function of (seed, step, position in the
// global batch) alone, so that any number of ranks sees the same batches.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "train/data/token_source.h"

namespace fsdp {

/// `input` [rows, seq] and `target` [rows, seq], int64; target is input one
/// token later.
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// A counter-based generator: 64 well-mixed bits for each (seed, stream,
/// index).
std::uint64_t mixed_bits(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

/// Where sequence `index` of step `step`'s global batch begins in a source of
/// `num_tokens` tokens: uniform over [0, num_tokens - seq).
std::int64_t training_window(
    std::uint64_t seed,
    std::int64_t step,
    std::int64_t index,
    std::int64_t num_tokens,
    std::int64_t seq);

/// Beginnings of at most `max_windows` windows of seq + 1 tokens, evenly spread
/// over the source, without overlap of targets; the same on every call.
std::vector<std::int64_t> validation_windows(
    std::int64_t num_tokens, std::int64_t seq, std::int64_t max_windows);

Batch read_windows(
    const TokenSource& source,
    const std::vector<std::int64_t>& begins,
    std::int64_t seq);

/// Sequences [first, first + rows) of the fixed batch of preset `seed`: random
/// inputs, and targets that have nothing to do with them.
Batch random_batch(
    std::uint64_t seed,
    std::int64_t first,
    std::int64_t rows,
    std::int64_t seq,
    std::int64_t vocab_size);

} // namespace fsdp
