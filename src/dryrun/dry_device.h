#pragma once
// A device whose tensors have shapes and addresses but no memory: what a step
// allocates, frees and sends can be counted for any model and world size on a
// small machine. LibTorch's device type PrivateUse1, which a program can give
// away once.

#include <c10/core/Device.h>

namespace fsdp {

/// The name of the device type: "dry".
inline constexpr const char* kDryDeviceType = "dry";

/// The device. Its tensors count into MemoryAccount::current(), by component.
/// A LibTorch function gives results of the right shapes; values do not exist:
/// item() is 1 (true, 1.0). Throws UsageError, from the call, naming the
/// function, where the shape of a result depends on values, or where LibTorch
/// computes no shape without computing the result. The first call gives the
/// type its name; it throws Error if the program has given another one.
c10::Device dry_device();

/// Whether `data` is an address that dry tensors have: it must not be read.
bool is_dry_address(const void* data);

} // namespace fsdp
