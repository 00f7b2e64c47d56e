#pragma once
// Every number of the time model that is neither a shape nor a data sheet's
// figure of one device (device.h). "cited": the source prints it. "fitted":
// chosen on published runs, with what it stands for. docs/planner.md has the
// full references.

#include <array>
#include <cstdint>
#include <string_view>

namespace fsdp::plan {

enum class Origin : std::uint8_t { kCited, kFitted, kAssumed };

struct Constant {
  std::string_view name;
  double value = 0;
  std::string_view unit;
  Origin origin = Origin::kCited;
  std::string_view source; ///< where it is printed, or what it stands for

  // NOLINTNEXTLINE(google-explicit-constructor): it is a number with a label
  constexpr operator double() const { return value; }
};

// Rates.

inline constexpr Constant kMatmulShare{
    "share of the best matrix product",
    0.90,
    "1",
    Origin::kFitted,
    "a block's products are smaller than the best shape, and kernels start and "
    "end between them"};
inline constexpr Constant kBestMatmulOfPeak{
    "best matrix product over the data sheet's peak",
    0.80,
    "1",
    Origin::kCited,
    "stas00/ml-engineering MAMF: H100 794.5 of 989; for devices that nobody "
    "measured"};
inline constexpr Constant kAttentionShare{
    "share of the best matrix product, fused attention",
    0.60,
    "1",
    Origin::kFitted,
    "softmax between the two products of a tile"};
inline constexpr Constant kMemoryShare{
    "share of the memory bandwidth",
    0.90,
    "1",
    Origin::kCited,
    "Calculon: HBM efficiency from 100 MB on"};
inline constexpr Constant kCompiledBytes{
    "elementwise bytes left by a compiler that fuses",
    0.50,
    "1",
    Origin::kFitted,
    "norms, activations and residuals in one pass over memory"};

/// Share of the rate that a product of so many FLOPs reaches (Calculon: .1
/// below 1 GFLOP, .6 at 1, .9 at 16, .95 from 128 on).
struct MatmulSize {
  double flops = 0;
  double share = 0;
};

inline constexpr std::array<MatmulSize, 4> kMatmulSizes{{
    {0.25e9, 0.1},
    {1e9, 0.6},
    {16e9, 0.9},
    {128e9, 0.95},
}};

inline constexpr Constant kContention{
    "compute rate that a running collective takes",
    0.15,
    "1",
    Origin::kFitted,
    "NCCL's kernels occupy processors and memory bandwidth of the device"};

// Links.

inline constexpr Constant kNodeLinkShare{
    "share of the link inside a node",
    0.80,
    "1",
    Origin::kCited,
    "stas00/ml-engineering: 8 x H200 ring 361 to 367 of 450 GB/s, 8 x A100 235 "
    "to 240 of 300"};
inline constexpr Constant kNetworkShare{
    "share of the network's bandwidth",
    0.90,
    "1",
    Origin::kCited,
    "Calculon: InfiniBand efficiency of its A100 and H100 systems"};
inline constexpr Constant kHostShare{
    "share of the link to the host",
    0.88,
    "1",
    Origin::kCited,
    "stas00/ml-engineering: 55.4 of 63 GB/s from host to H200"};
inline constexpr Constant kHostMemoryBandwidth{
    "host memory bandwidth of one rank",
    25e9,
    "bytes/s",
    Origin::kAssumed,
    "a two-socket server's 200 GB/s over 8 ranks; only cpu_offload uses it"};

// NCCL's model of collectives (src/graph/tuning.cc at 5067397c), seconds.

/// Latency in seconds of the start, of a hop inside a node and of one between
/// nodes; share of the bus bandwidth that the protocol reaches.
struct Protocol {
  std::string_view name;
  double base = 0;
  double node_hop = 0;
  double network_hop = 0;
  double bandwidth_share = 1;
};

inline constexpr std::array<Protocol, 3> kRingProtocols{{
    {"LL", 6.6e-6, 0.6e-6, 2.7e-6, 0.5},
    {"LL128", 14e-6, 1.9e-6, 4.0e-6, 0.92},
    {"Simple", 8.4e-6, 3.4e-6, 14e-6, 1.0},
}};
/// A tree reaches 0.92 of a ring's bandwidth.
inline constexpr std::array<Protocol, 3> kTreeProtocols{{
    {"LL", 6.8e-6, 0.6e-6, 5.0e-6, 0.5 * 0.92},
    {"LL128", 14e-6, 1.25e-6, 8.5e-6, 0.92 * 0.92},
    {"Simple", 8.4e-6, 4.0e-6, 14e-6, 0.92},
}};

inline constexpr std::array kConstants{
    &kMatmulShare,
    &kBestMatmulOfPeak,
    &kAttentionShare,
    &kMemoryShare,
    &kCompiledBytes,
    &kContention,
    &kNodeLinkShare,
    &kNetworkShare,
    &kHostShare,
    &kHostMemoryBandwidth,
};

} // namespace fsdp::plan
