#pragma once
// Shapes of the LibTorch functions that the meta device cannot run from C++
// (PyTorch has them in Python), as the CPU's kernels allocate.

namespace fsdp {

/// Registers them for the dry device; once a process.
void register_shape_kernels();

} // namespace fsdp
