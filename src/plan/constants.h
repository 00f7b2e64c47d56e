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

// Products of matrices.

inline constexpr Constant kBestMatmulOfPeak{
    "best matrix product over the data sheet's peak",
    0.80,
    "1",
    Origin::kCited,
    "stas00/ml-engineering MAMF: H100 794.5 of 989; for devices that nobody "
    "measured"};
inline constexpr Constant kSustainedShare{
    "long-run rate over the best matrix product, Hopper and later",
    0.91,
    "1",
    Origin::kFitted,
    "training for minutes is limited by power, the best product of a short "
    "test is not"};
inline constexpr Constant kHalfKilowattShare{
    "best matrix product of a 500 W H100 over that of the 700 W one",
    500.0 / 700,
    "1",
    Origin::kFitted,
    "nobody printed it; the rate goes with the power limit, a rule that was "
    "chosen because it fits"};
inline constexpr Constant kHalfRateLength{
    "length of the inner dimension at which a product reaches half its rate",
    270,
    "elements",
    Origin::kFitted,
    "filling and draining a tile's pipeline and its epilogue cost as much as "
    "so many steps along the inner dimension"};

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

// Fused attention, shares of the device's peak, forward and backward alike.

inline constexpr Constant kFlashAttention1{
    "FlashAttention 1 on A100",
    0.325,
    "1",
    Origin::kCited,
    "FlashAttention-2 paper, abstract: 25 to 40 % of the peak, the middle"};
inline constexpr Constant kFlashAttention2{
    "FlashAttention 2 on A100",
    0.615,
    "1",
    Origin::kCited,
    "FlashAttention-2 paper, abstract: 50 to 73 % of the peak, the middle"};
inline constexpr Constant kFlashAttention2OnHopper{
    "FlashAttention 2 on H100",
    0.35,
    "1",
    Origin::kCited,
    "FlashAttention-3 paper, abstract: 35 % of the peak; FlashAttention 1 "
    "loses as much"};

// Memory.

inline constexpr Constant kMemoryShare{
    "share of the memory bandwidth",
    0.90,
    "1",
    Origin::kCited,
    "Calculon: HBM efficiency from 100 MB on"};
inline constexpr Constant kHostMemoryBandwidth{
    "host memory bandwidth of one rank",
    25e9,
    "bytes/s",
    Origin::kAssumed,
    "a two-socket server's 200 GB/s over 8 ranks; only cpu_offload uses it"};

inline constexpr Constant kCrowdedShare{
    "share of the memory from which allocations are retried",
    0.97,
    "1",
    Origin::kAssumed,
    "only a warning's; the two llm-foundry runs above it are 20 and 24 % "
    "slower than predicted"};

// What running collectives take from the compute beside them.

inline constexpr Constant kContentionProcessors{
    "compute rate that a running collective takes",
    0.15,
    "1",
    Origin::kFitted,
    "NCCL's kernels hold about 16 of 108 processors"};
inline constexpr Constant kContentionBytes{
    "memory bytes that a collective moves for each byte it sends",
    6.1,
    "bytes/byte",
    Origin::kFitted,
    "hops through NCCL's buffers, copies in and out, cast, division"};
inline constexpr Constant kMostContention{
    "bound of the compute rate that collectives take",
    0.95,
    "1",
    Origin::kFitted,
    "compute never stops altogether; no source prints it, and it binds on "
    "A100-40GB and on the H100 of 96 GB"};

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
/// Not in kConstants: no prediction uses it but that of one table of runs.
inline constexpr Constant kUnstatedNetwork{
    "network bandwidth of a device in YaFSDP's table",
    7.5e9 / 0.90,
    "bytes/s",
    Origin::kFitted,
    "the source does not state its network; 7.5 GB/s pass through"};

// NCCL's model of collectives (src/graph/tuning.cc at 5067397c), its protocol
// "Simple". LL and LL128 would promise small tensors 3 to 10 times what is
// measured over several nodes (stas00/ml-engineering, 4 x 8 B200).

/// Seconds of the start, of a hop inside a node and of one between nodes; share
/// of the ring's bandwidth.
struct Algorithm {
  std::string_view name;
  double base = 0;
  double node_hop = 0;
  double network_hop = 0;
  double bandwidth_share = 1;
};

inline constexpr Algorithm kRing{"ring", 8.4e-6, 3.4e-6, 14e-6, 1};
inline constexpr Algorithm kTree{"tree", 8.4e-6, 4.0e-6, 14e-6, 0.92};

inline constexpr std::array kConstants{
    &kBestMatmulOfPeak,
    &kSustainedShare,
    &kHalfKilowattShare,
    &kHalfRateLength,
    &kFlashAttention1,
    &kFlashAttention2,
    &kFlashAttention2OnHopper,
    &kMemoryShare,
    &kHostMemoryBandwidth,
    &kCrowdedShare,
    &kContentionProcessors,
    &kContentionBytes,
    &kMostContention,
    &kNodeLinkShare,
    &kNetworkShare,
    &kHostShare,
};

} // namespace fsdp::plan
