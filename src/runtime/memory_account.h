#pragma once
// The counts of one rank's memory. A process is a rank, so that threads count
// into the process's account, unless ranks are threads (RankMemory).

#include <array>
#include <atomic>
#include <cstdint>

#include <c10/core/Allocator.h>

#include "fsdp/memory.h"

namespace at {
class Tensor;
}

namespace fsdp {

/// Thread-safe: whoever frees a block takes it off the account that it was
/// added to.
class MemoryAccount {
 public:
  void add(MemoryComponent component, std::int64_t bytes);
  void move(MemoryComponent from, MemoryComponent to, std::int64_t bytes);
  MemoryReport report() const;
  void reset_peaks();

  /// Of this thread. Lives for ever, as blocks may.
  static MemoryAccount& current();

 private:
  friend class RankMemory;

  using Counter = std::atomic<std::int64_t>;
  struct Use {
    Counter current{0};
    Counter peak{0};
    Counter at_total_peak{0};
  };

  void note_total_peak(std::int64_t total);

  std::array<Use, kNumMemoryComponents> uses_;
  Counter total_{0};
  Counter total_peak_{0};
};

/// While it lives, tensors that this thread makes count as `component`. Scopes
/// nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryComponent component);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryComponent previous_;
};

/// Counts the memory of `tensor` as `component` from now on; nothing happens to
/// memory that neither the counting allocator nor counted_data() made.
void count_as(const at::Tensor& tensor, MemoryComponent component);

/// The component that this thread's allocations count as.
MemoryComponent current_component();

/// While it lives, this thread counts into an account of its own: for ranks
/// that are threads.
class RankMemory {
 public:
  RankMemory();
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

 private:
  MemoryAccount* previous_;
};

/// Memory that no allocator sees, such as this rank's share of a mapping:
/// counted while it lives.
class CountedBytes {
 public:
  CountedBytes() = default;
  CountedBytes(MemoryComponent component, std::int64_t bytes);
  CountedBytes(CountedBytes&& other) noexcept;
  CountedBytes& operator=(CountedBytes&& other) noexcept;
  ~CountedBytes();
  std::int64_t bytes() const { return bytes_; }
  void count_as(MemoryComponent component);

 private:
  MemoryAccount* account_ = nullptr;
  MemoryComponent component_ = MemoryComponent::kActivations;
  std::int64_t bytes_ = 0;
};

/// `data` as a tensor's memory, counted while it lives; nothing frees it.
c10::DataPtr counted_data(void* data, std::int64_t bytes, c10::Device device);

} // namespace fsdp
