#pragma once
// What counting alone predicts: the yardstick that a model of bytes must beat.

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

/// A table of bytes given the `order - 1` bytes before, interpolated with the
/// lower orders (Witten and Bell, 1991), down to the uniform distribution.
class NgramTable {
 public:
  /// order 1, 2 or 3. The table takes 4 * 256^order bytes.
  NgramTable(int order, std::span<const std::uint8_t> train);

  /// Mean of -ln p over bytes [begin, begin + count) of `text`; what comes
  /// before `begin` is context. 0 if count is 0.
  double nats_per_byte(
      std::span<const std::uint8_t> text,
      std::int64_t begin,
      std::int64_t count) const;

 private:
  struct Order {
    std::vector<std::uint32_t> counts; ///< [context][byte]
    std::vector<std::uint32_t> totals; ///< [context]
    std::vector<std::uint32_t> kinds;  ///< [context]: different bytes seen
  };
  double probability(std::span<const std::uint8_t> text, std::size_t i) const;

  std::vector<Order> orders_; ///< shortest context first
};

} // namespace fsdp
