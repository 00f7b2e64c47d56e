#include "train/data/windows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>

namespace fsdp {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::int64_t below(std::uint64_t bits, std::int64_t bound) {
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(bound));
}

// Streams of preset seed's batch; those of the corpora are steps.
constexpr std::uint64_t kInputs = ~std::uint64_t{0};
constexpr std::uint64_t kTargets = kInputs - 1;

} // namespace

std::uint64_t mixed_bits(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

std::int64_t training_window(
    std::uint64_t seed,
    std::int64_t step,
    std::int64_t index,
    std::int64_t num_tokens,
    std::int64_t seq) {
  return below(
      mixed_bits(
          seed,
          static_cast<std::uint64_t>(step),
          static_cast<std::uint64_t>(index)),
      num_tokens - seq);
}

std::vector<std::int64_t> validation_windows(
    std::int64_t num_tokens, std::int64_t seq, std::int64_t max_windows) {
  const std::int64_t count = std::min(max_windows, (num_tokens - 1) / seq);
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i < count; ++i) {
    begins.push_back((num_tokens - 1) / count * i);
  }
  return begins;
}

Batch read_windows(
    const TokenSource& source,
    const std::vector<std::int64_t>& begins,
    std::int64_t seq) {
  const auto rows = static_cast<std::int64_t>(begins.size());
  Batch batch{
      at::empty({rows, seq}, at::kLong), at::empty({rows, seq}, at::kLong)};
  auto* inputs = batch.input.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.target.mutable_data_ptr<std::int64_t>();
  const auto length = static_cast<std::size_t>(seq);
  for (const std::int64_t begin : begins) {
    source.copy(begin, std::span(inputs, length));
    source.copy(begin + 1, std::span(targets, length));
    inputs += seq;
    targets += seq;
  }
  return batch;
}

Batch random_batch(
    std::uint64_t seed,
    std::int64_t first,
    std::int64_t rows,
    std::int64_t seq,
    std::int64_t vocab_size) {
  Batch batch{
      at::empty({rows, seq}, at::kLong), at::empty({rows, seq}, at::kLong)};
  auto* inputs = batch.input.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.target.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows * seq; ++i) {
    const auto index = static_cast<std::uint64_t>(first * seq + i);
    inputs[i] = below(mixed_bits(seed, kInputs, index), vocab_size);
    targets[i] = below(mixed_bits(seed, kTargets, index), vocab_size);
  }
  return batch;
}

} // namespace fsdp
