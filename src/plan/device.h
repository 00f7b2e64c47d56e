#pragma once
// Accelerators and their links, from data sheets and measurements
// (docs/planner.md names the source of each figure).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"

namespace fsdp::plan {

/// All rates are dense, per device, in one direction, in units of 1 (FLOP/s,
/// bytes/s). 0: not known, or not there.
struct Device {
  std::string name;
  double peak_bf16 = 0;
  double peak_fp16 = 0;
  double peak_tf32 = 0;
  double peak_fp32 = 0;
  double peak_fp8 = 0;
  double best_matmul_bf16 = 0; ///< measured, of any shape
  /// Matrix units that power limits in a long run, and that FlashAttention 1
  /// and 2 use in part only.
  bool is_hopper_or_later = false;
  /// Memory is handed out by PyTorch's caching allocator, as on every GPU.
  bool has_caching_allocator = false;
  double memory_bytes = 0;
  double memory_bandwidth = 0;
  double node_bandwidth = 0;    ///< to the other devices of a host
  double host_bandwidth = 0;    ///< to the host's memory (PCIe)
  double network_bandwidth = 0; ///< to other hosts, a device's share
  int devices_per_node = 8;

  /// FLOP/s of matrix products in `dtype` (kFloat8 in fp8, kFloat32 in tf32
  /// where the device has it). Throws ConfigError, naming device and dtype, if
  /// that is not known.
  double peak(DType dtype) const;
};

/// The known devices, by name.
std::span<const Device> devices();

/// By name, case and '-', '_' aside. Throws ConfigError with the nearest names.
const Device& find_device(std::string_view name);

} // namespace fsdp::plan
