#pragma once
// Memory for gradients that other ranks read where autograd left them.
//
// While a backward runs, an allocation of its thread that has the size of an
// expected gradient comes from the arena, which lies in memory that all ranks
// map. Something else of that size may take a place, too, and a full arena
// leaves gradients to the heap: such a gradient is copied before it is posted.

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace fsdp {

class SharedRegion;

/// Thread-safe: a tensor may be freed by any thread. Living blocks keep it.
class GradientArena {
 public:
  /// Bytes [begin, begin + bytes) of `region`; begin is a multiple of 64.
  GradientArena(
      std::shared_ptr<SharedRegion> region,
      std::size_t begin,
      std::size_t bytes);

  /// What the allocator puts before each tensor's data, in its block.
  static constexpr std::size_t kHeaderBytes = 64;
  /// What a block of `bytes` takes of an arena.
  static std::size_t footprint(std::size_t bytes);
  /// A copy into a message costs less than keeping track of smaller ones.
  static constexpr std::size_t kSmallestGradient = 16 << 10;

  /// The offset in the region of memory that lies in the arena.
  std::optional<std::size_t> offset_of(const void* data) const;

  /// A block of footprint(bytes), or null if there is no room.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

 private:
  const std::shared_ptr<SharedRegion> region_;
  std::byte* const begin_;
  const std::size_t bytes_;

  std::mutex mutex_;
  std::size_t used_up_to_ = 0;
  std::size_t num_alive_ = 0;
  /// By footprint: blocks below used_up_to_ that are free.
  std::unordered_map<std::size_t, std::vector<std::byte*>> free_;
};

/// From which arena this thread's allocations come, and of which sizes.
struct ExpectedGradients {
  std::shared_ptr<GradientArena> arena;
  std::unordered_set<std::size_t> sizes; ///< bytes

  bool includes(std::size_t bytes) const {
    return bytes >= GradientArena::kSmallestGradient && sizes.contains(bytes);
  }

  /// Of this thread; null outside of a backward.
  static const ExpectedGradients* current();
  static void set_current(std::shared_ptr<const ExpectedGradients> expected);
};

} // namespace fsdp
