#include "comm/wire_request.h"

#include <algorithm>
#include <cstring>

#include "core/hash.h"

namespace fsdp {

namespace {

bool same_call(const WireRequest& a, const WireRequest& b) {
  return a.meeting == b.meeting && a.dtype == b.dtype && a.op == b.op &&
         a.grad_enabled == b.grad_enabled && a.root == b.root &&
         a.tree == b.tree && a.numel == b.numel &&
         a.subject_bytes == b.subject_bytes &&
         std::memcmp(a.subject, b.subject, sizeof(a.subject)) == 0;
}

/// Two models of one structure ask for the same but for whose it is.
std::string describe(const WireRequest& request, const WireRequest& other) {
  return decode(request).describe() +
         (request.tree != other.tree && request.tree * other.tree != 0
              ? " of model " + std::to_string(request.tree)
              : "");
}

} // namespace

WireRequest encode(
    const Request& request, std::span<const std::int64_t> counts) {
  WireRequest wire;
  wire.meeting = static_cast<std::uint8_t>(request.meeting);
  wire.dtype = static_cast<std::uint8_t>(request.dtype);
  wire.op = static_cast<std::uint8_t>(request.op);
  wire.grad_enabled = request.grad_enabled ? 1 : 0;
  wire.root = request.root;
  wire.tree = request.tree;
  wire.numel = request.numel;
  wire.counts_hash = fnv1a(std::as_bytes(counts));
  const std::size_t length =
      std::min(request.subject.size(), sizeof(wire.subject));
  wire.subject_bytes = static_cast<std::uint8_t>(length);
  std::memcpy(wire.subject, request.subject.data(), length);
  return wire;
}

Request decode(const WireRequest& wire) {
  return {
      .meeting = static_cast<Meeting>(wire.meeting),
      .dtype = static_cast<DType>(wire.dtype),
      .op = static_cast<ReduceOp>(wire.op),
      .grad_enabled = wire.grad_enabled != 0,
      .root = wire.root,
      .tree = wire.tree,
      .numel = wire.numel,
      .subject = std::string(wire.subject, wire.subject_bytes),
  };
}

std::string different_requests(
    int rank_a,
    const WireRequest& request_a,
    int rank_b,
    const WireRequest& request_b) {
  if (rank_b < rank_a) {
    return different_requests(rank_b, request_b, rank_a, request_a);
  }
  return "ranks met with different requests: rank " + std::to_string(rank_a) +
         " asks for " + describe(request_a, request_b) + ", rank " +
         std::to_string(rank_b) + " for " + describe(request_b, request_a) +
         "; every rank must issue the same calls in the same order";
}

std::string find_mismatch(std::span<const WireRequest> by_rank) {
  const WireRequest& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const WireRequest& other = by_rank[rank];
    if (!same_call(first, other)) {
      return different_requests(0, first, static_cast<int>(rank), other);
    }
    if (first.counts_hash != other.counts_hash) {
      return "ranks met with different counts: rank 0 and rank " +
             std::to_string(rank) + " both ask for " +
             decode(first).describe() +
             ", but split the elements over the ranks differently; every rank "
             "must pass the same counts";
    }
  }
  return "";
}

} // namespace fsdp
