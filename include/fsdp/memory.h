#pragma once
// How many bytes of tensors each rank holds, and what for.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fsdp/export.h"

namespace fsdp {

enum class MemoryComponent : std::uint8_t {
  kParameters,     ///< this rank's rows, in the parameters' own dtype
  kGradients,      ///< `.grad` of these rows
  kOptimizerState, ///< of fsdp's optimizers
  kGathered,   ///< full parameters in compute dtype: this rank's part of the
               ///< copy that a host's ranks share, or what this rank gathered
  kReduction,  ///< full gradients and their way between ranks, and the largest
               ///< copies of gradients that a message has held
  kActivations ///< all else: what autograd saved, temporaries, the user's own
};
inline constexpr std::size_t kNumMemoryComponents = 6;

/// "parameters", "gradients", "optimizer state", ...
FSDP_API std::string_view name_of(MemoryComponent component);

struct MemoryUse {
  std::int64_t current = 0;       ///< bytes
  std::int64_t peak = 0;          ///< the most since the last reset
  std::int64_t at_total_peak = 0; ///< when the sum of all was highest
};

struct MemoryReport {
  std::array<MemoryUse, kNumMemoryComponents> components;
  MemoryUse total;

  const MemoryUse& operator[](MemoryComponent component) const {
    return components[static_cast<std::size_t>(component)];
  }
};

/// Replaces LibTorch's CPU allocator by a counting one, which also keeps freed
/// blocks of 128 KiB and more for the next tensors of their size: never more
/// than was in use at once. fully_shard calls it where ranks share memory; call
/// it first to count what is made earlier. Tensors made before keep their own.
/// Throws Error if
/// another allocator of higher priority is in place. Idempotent, thread-safe.
FSDP_API void install_counting_allocator();

/// The CPU tensors alive in this process, as asked for (blocks carry 64 bytes
/// more), plus its share of memory that ranks map together: over a host's ranks
/// each shared byte counts once. What is kept for reuse does not count. All
/// zero before install_counting_allocator(). oneDNN's scratch counts, MKL's
/// packing buffers do not.
FSDP_API MemoryReport memory_report();

/// Returns the freed blocks that are kept to the system.
FSDP_API void empty_memory_cache();

/// Peaks start anew from what is alive.
FSDP_API void reset_peak_memory();

} // namespace fsdp
