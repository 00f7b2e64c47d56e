#include "plan/device.h"

#include <array>
#include <vector>

#include "fsdp/error.h"
#include "plan/constants.h"
#include "plan/find_by_name.h"

namespace fsdp::plan {

namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kGibi = 1024.0 * 1024 * 1024;

/// A row of docs/planner.md in the units of data sheets: TFLOP/s, GB/s, and GiB
/// that a program can allocate.
struct Sheet {
  const char* name;
  double bf16, fp16, tf32, fp32, fp8, best_matmul_bf16;
  bool is_hopper_or_later;
  double memory_gib, memory_bandwidth;
  double node_bandwidth, host_bandwidth, network_bandwidth;
  int devices_per_node;
};

// The best product of the 500 W part is the 700 W part's by their power, which
// no source prints.
// clang-format off
constexpr std::array kSheets{
    // name                       bf16   fp16   tf32  fp32  fp8    best  Hopper  GiB    HBM   node host   net  per node
    Sheet{"A100-SXM-40GB",         312,   312,   156, 19.5,    0,  271.2, false,  39.45, 1555,  300, 31,    25,   8},
    Sheet{"A100-SXM-80GB",         312,   312,   156, 19.5,    0,  271.2, false,  79.11, 2039,  300, 31,    25,   8},
    Sheet{"A100-PCIe-80GB",        312,   312,   156, 19.5,    0,  252.9, false,  79.11, 1940,   31, 31,     0,   8},
    Sheet{"H100-SXM-80GB",         989,   989, 494.5,   67, 1979,  794.5,  true,  79.11, 3350,  450, 63,    50,   8},
    Sheet{"H100-SXM-96GB-HBM2e-500W", 989,   989, 494.5,   67, 1979, 794.5 * kHalfKilowattShare, true,  95.04, 2400,  450, 63,    50,   8},
    Sheet{"H100-PCIe-80GB",        756,   756,   378,   51, 1513,      0,  true,  79.11, 2000,   63, 63,     0,   8},
    Sheet{"H200-SXM-141GB",        989,   989, 494.5,   67, 1979,  794.5,  true,  139.8, 4800,  450, 63,    50,   8},
    Sheet{"B200-SXM",             2250,  2250,  1125,   80, 4500,   1745,  true, 178.35, 8000,  900, 63,    50,   8},
    Sheet{"B300-SXM",             2250,  2250,  1125,   80, 4500,   1769,  true,  283.7, 8000,  900, 121,  100,   8},
    Sheet{"GB200-NVL72",          2500,  2500,  1250,   80, 5000,   1822,  true,  183.2, 8000,  900, 450,   50,  72},
    Sheet{"MI300X",               1300,  1300, 653.7, 163.4, 2610, 668.4, false,  189.1, 5300,  448, 63,    50,   8},
    Sheet{"L4",                    121,   121,    60, 30.3,  242,      0, false,   22.0,  300,   31, 31,     0,   8},
    Sheet{"RTX4090",             165.2, 330.3,  82.6, 82.6, 660.6,   161, false,  23.52, 1008,   31, 31,     0,   8},
    Sheet{"V100-SXM2-32GB",          0,   125,     0, 15.7,    0,      0, false,   31.5,  900,  150, 15.75, 12.5, 8},
};
// clang-format on

std::vector<Device> make_devices() {
  std::vector<Device> all;
  for (const Sheet& sheet : kSheets) {
    all.push_back(
        {.name = sheet.name,
         .peak_bf16 = sheet.bf16 * kTera,
         .peak_fp16 = sheet.fp16 * kTera,
         .peak_tf32 = sheet.tf32 * kTera,
         .peak_fp32 = sheet.fp32 * kTera,
         .peak_fp8 = sheet.fp8 * kTera,
         .best_matmul_bf16 = sheet.best_matmul_bf16 * kTera,
         .is_hopper_or_later = sheet.is_hopper_or_later,
         .has_caching_allocator = true,
         .memory_bytes = sheet.memory_gib * kGibi,
         .memory_bandwidth = sheet.memory_bandwidth * kGiga,
         .node_bandwidth = sheet.node_bandwidth * kGiga,
         .host_bandwidth = sheet.host_bandwidth * kGiga,
         .network_bandwidth = sheet.network_bandwidth * kGiga,
         .devices_per_node = sheet.devices_per_node});
  }
  return all;
}

double known_peak(const Device& device, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return device.peak_bf16;
    case DType::kFloat16:
      return device.peak_fp16;
    case DType::kFloat32:
      return device.peak_tf32 > 0 ? device.peak_tf32 : device.peak_fp32;
    case DType::kFloat8:
      return device.peak_fp8;
    default:
      return 0;
  }
}

} // namespace

double Device::peak(DType dtype) const {
  const double rate = known_peak(*this, dtype);
  if (rate <= 0) {
    throw ConfigError(
        "device '" + name + "': its rate in " + std::string(name_of(dtype)) +
        " is not known: choose another precision, or give the peak");
  }
  return rate;
}

std::span<const Device> devices() {
  static const std::vector<Device> all = make_devices();
  return all;
}

const Device& find_device(std::string_view name) {
  return find_by_name("device", devices(), name);
}

} // namespace fsdp::plan
