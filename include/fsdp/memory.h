#pragma once
// How many bytes of tensors this process holds.

#include <cstdint>

#include "fsdp/export.h"

namespace fsdp {

/// Replaces LibTorch's CPU allocator by a counting one. Tensors made before
/// keep their own. Throws Error if another allocator of higher priority is in
/// place. Idempotent, thread-safe.
FSDP_API void install_counting_allocator();

/// Bytes of CPU tensors alive now, and the most since the last reset, in this
/// process (ranks that are threads share it), plus this rank's part of shared
/// regions (size / ranks that map it). 0 before install_counting_allocator().
/// oneDNN's scratch counts, MKL's packing buffers do not.
FSDP_API std::int64_t tensor_bytes();
FSDP_API std::int64_t peak_tensor_bytes();
FSDP_API void reset_peak_tensor_bytes();

/// Adds (or with a negative number removes) bytes that no tensor allocation
/// sees, such as a shared region.
FSDP_API void count_tensor_bytes(std::int64_t bytes);

} // namespace fsdp
