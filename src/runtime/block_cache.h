#pragma once
// Large blocks of the heap, kept when they are freed. The C library returns
// them to the system, which hands out zeroed pages again: at every step of a
// training loop, for the same sizes as in the step before.

#include <cstddef>
#include <list>
#include <mutex>

namespace fsdp {

/// Thread-safe. Never holds more than was in use at once since the last
/// clear().
class BlockCache {
 public:
  /// Blocks below this are the C library's business.
  static constexpr std::size_t kSmallest = 128 << 10;

  static BlockCache& of_process();

  /// Throws what LibTorch's allocation throws if there is no memory, even after
  /// all that was kept is returned.
  void* take(std::size_t bytes);
  void give_back(void* block, std::size_t bytes);
  /// Returns what is kept to the system.
  void clear();

  std::size_t num_bytes(); ///< handed out and kept

 private:
  struct Free {
    void* block;
    std::size_t bytes;
  };

  void* take_kept(std::size_t bytes);
  /// Drops what would be too much beside a new block of `bytes`.
  void make_room(std::size_t bytes, std::list<Free>& dropped);

  std::mutex mutex_;
  std::list<Free> free_; ///< the last freed one first
  std::size_t free_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::size_t peak_bytes_ = 0; ///< of used_bytes_
};

} // namespace fsdp
