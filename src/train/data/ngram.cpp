#include "train/data/ngram.h"

#include <cmath>
#include <string>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kBytes = 256;

// The `length` bytes before position i, as a number.
std::size_t context_before(
    std::span<const std::uint8_t> text, std::size_t i, std::size_t length) {
  std::size_t context = 0;
  for (std::size_t k = length; k > 0; --k) {
    context = context * kBytes + text[i - k];
  }
  return context;
}

} // namespace

NgramTable::NgramTable(int order, std::span<const std::uint8_t> train) {
  if (order < 1 || order > 3) {
    throw UsageError(
        "NgramTable: order " + std::to_string(order) + ", expected 1, 2 or 3");
  }
  std::size_t num_contexts = 1;
  for (std::size_t length = 0; length < static_cast<std::size_t>(order);
       ++length, num_contexts *= kBytes) {
    Order& table = orders_.emplace_back();
    table.counts.resize(num_contexts * kBytes);
    table.totals.resize(num_contexts);
    table.kinds.resize(num_contexts);
    for (std::size_t i = length; i < train.size(); ++i) {
      const std::size_t context = context_before(train, i, length);
      const auto before = table.counts[context * kBytes + train[i]]++;
      ++table.totals[context];
      table.kinds[context] += before == 0 ? 1 : 0;
    }
  }
}

double NgramTable::probability(
    std::span<const std::uint8_t> text, std::size_t i) const {
  double p = 1.0 / kBytes;
  for (std::size_t length = 0; length < orders_.size() && length <= i;
       ++length) {
    const Order& table = orders_[length];
    const std::size_t context = context_before(text, i, length);
    const double kinds = table.kinds[context];
    if (kinds == 0) {
      break;
    }
    p = (table.counts[context * kBytes + text[i]] + kinds * p) /
        (table.totals[context] + kinds);
  }
  return p;
}

double NgramTable::nats_per_byte(
    std::span<const std::uint8_t> text,
    std::int64_t begin,
    std::int64_t count) const {
  double sum = 0;
  for (std::int64_t i = begin; i < begin + count; ++i) {
    sum -= std::log(probability(text, static_cast<std::size_t>(i)));
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

} // namespace fsdp
