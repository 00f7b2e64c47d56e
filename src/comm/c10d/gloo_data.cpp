// How the data of each collective moves: straight between the two ranks that
// have it and need it. Bytes that a rank sends, of N bytes over W ranks:
//   all_gather (W-1) N/W, reduce_scatter N (W-1)/W, broadcast about N,
//   all_reduce (W-1) N for small N, else N (W-1)/W and then the same again.
// Sums are taken here, in rank order, and not by Gloo.

#include <algorithm>
#include <cstring>
#include <span>

#include "comm/c10d/gloo_operation.h"
#include "comm/c10d/peer_exchange.h"
#include "comm/reduce_kernels.h"

namespace fsdp {
namespace {

constexpr std::size_t kSmallBytes = 32 << 10;

using Counts = std::vector<std::int64_t>;

/// An array cut into one slice for each rank.
struct Slices {
  Slices(const Counts& counts, DType dtype) {
    std::size_t begin = 0;
    for (const std::int64_t count : counts) {
      begins.push_back(begin);
      sizes.push_back(static_cast<std::size_t>(count) * size_of(dtype));
      begin += sizes.back();
    }
  }

  std::vector<GatherPiece> pieces() const {
    std::vector<GatherPiece> result;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      result.push_back({static_cast<int>(rank), begins[rank], sizes[rank]});
    }
    return result;
  }

  std::vector<std::size_t> begins; ///< bytes
  std::vector<std::size_t> sizes;  ///< bytes
};

template <typename Function>
void for_each_peer(const PeerExchange& exchange, Function function) {
  // Each rank begins with its successor, so that no rank gets all at once.
  for (int i = 1; i < exchange.size(); ++i) {
    const int peer = (exchange.rank() + i) % exchange.size();
    function(peer, static_cast<std::size_t>(peer));
  }
}

Counts even_counts(std::int64_t numel, int size) {
  const std::int64_t rows = (numel + size - 1) / size;
  Counts counts;
  for (int r = 0; r < size; ++r) {
    counts.push_back(std::clamp<std::int64_t>(numel - r * rows, 0, rows));
  }
  return counts;
}

void gather(
    std::byte* buffer,
    std::span<const GatherPiece> pieces,
    PeerExchange& exchange) {
  for_each_peer(exchange, [&](int peer, std::size_t) {
    for (const GatherPiece& piece : pieces) {
      if (piece.rank == peer) {
        exchange.receive(peer, buffer + piece.offset, piece.bytes);
      }
    }
  });
  for_each_peer(exchange, [&](int peer, std::size_t) {
    for (const GatherPiece& piece : pieces) {
      if (piece.rank == exchange.rank()) {
        exchange.send(peer, buffer + piece.offset, piece.bytes);
      }
    }
  });
  exchange.finish();
}

/// Every rank's part of the reduction, from contributions that lie in scratch,
/// `bytes` apart, and the own one at `own`.
void reduce(
    const Operation& operation,
    PeerExchange& exchange,
    const std::byte* contributions,
    std::size_t bytes,
    const std::byte* own,
    std::byte* output,
    std::int64_t numel) {
  std::vector<const void*> inputs;
  for (int r = 0; r < exchange.size(); ++r) {
    inputs.push_back(
        r == exchange.rank()
            ? own
            : contributions + static_cast<std::size_t>(r) * bytes);
  }
  if (numel > 0) {
    reduce_in_rank_order(
        inputs,
        static_cast<DType>(operation.request.dtype),
        output,
        operation.output_dtype,
        numel,
        static_cast<ReduceOp>(operation.request.op),
        exchange.size());
  }
}

void reduce_slices(
    const Operation& operation,
    PeerExchange& exchange,
    const Counts& counts,
    const std::byte* input,
    std::byte* output) {
  const Slices slices(counts, static_cast<DType>(operation.request.dtype));
  const auto own = static_cast<std::size_t>(exchange.rank());
  const std::size_t bytes = slices.sizes[own];
  std::byte* scratch =
      exchange.scratch(bytes * static_cast<std::size_t>(exchange.size()));
  for_each_peer(exchange, [&](int peer, std::size_t p) {
    exchange.receive(peer, scratch + p * bytes, bytes);
  });
  for_each_peer(exchange, [&](int peer, std::size_t p) {
    exchange.send(peer, input + slices.begins[p], slices.sizes[p]);
  });
  exchange.finish();
  reduce(
      operation,
      exchange,
      scratch,
      bytes,
      input + slices.begins[own],
      output,
      counts[own]);
}

void all_reduce(Operation& operation, PeerExchange& exchange) {
  const auto numel = operation.request.numel;
  std::byte* data = operation.output;
  const std::size_t bytes = operation.output_bytes;
  if (bytes > kSmallBytes) {
    const Counts counts = even_counts(numel, exchange.size());
    const Slices slices(counts, operation.output_dtype);
    std::byte* own =
        data + slices.begins[static_cast<std::size_t>(exchange.rank())];
    reduce_slices(operation, exchange, counts, data, own);
    gather(data, slices.pieces(), exchange);
    return;
  }
  std::byte* scratch =
      exchange.scratch(bytes * static_cast<std::size_t>(exchange.size()));
  for_each_peer(exchange, [&](int peer, std::size_t p) {
    exchange.receive(peer, scratch + p * bytes, bytes);
    exchange.send(peer, data, bytes);
  });
  exchange.finish();
  reduce(operation, exchange, scratch, bytes, data, data, numel);
}

Counts broadcast_counts(const Operation& operation, int size) {
  Counts counts = even_counts(operation.request.numel, size - 1);
  counts.insert(counts.begin() + operation.request.root, 0);
  return counts;
}

/// The root hands each other rank a slice; they hand them on to each other.
void broadcast_large(Operation& operation, PeerExchange& exchange, int root) {
  const Slices slices(
      broadcast_counts(operation, exchange.size()), operation.output_dtype);
  const auto own = static_cast<std::size_t>(exchange.rank());
  std::byte* data = operation.output;
  if (exchange.rank() == root) {
    for_each_peer(exchange, [&](int peer, std::size_t p) {
      exchange.send(peer, data + slices.begins[p], slices.sizes[p]);
    });
    exchange.finish();
    return;
  }
  std::byte* place = data + slices.begins[own];
  exchange.receive(root, place, slices.sizes[own]);
  exchange.finish();
  for_each_peer(exchange, [&](int peer, std::size_t p) {
    if (peer != root) {
      exchange.receive(peer, data + slices.begins[p], slices.sizes[p]);
      exchange.send(peer, place, slices.sizes[own]);
    }
  });
  exchange.finish();
}

void broadcast(Operation& operation, PeerExchange& exchange) {
  const int root = operation.request.root;
  if (operation.output_bytes > kSmallBytes && exchange.size() > 2) {
    broadcast_large(operation, exchange, root);
    return;
  }
  if (exchange.rank() == root) {
    for_each_peer(exchange, [&](int peer, std::size_t) {
      exchange.send(peer, operation.output, operation.output_bytes);
    });
  } else {
    exchange.receive(root, operation.output, operation.output_bytes);
  }
  exchange.finish();
}

void take_own_piece(const Operation& operation, int rank) {
  if (operation.input_bytes > 0) {
    const GatherPiece& own = operation.pieces[static_cast<std::size_t>(rank)];
    std::memcpy(
        operation.output + own.offset, operation.input, operation.input_bytes);
  }
}

std::size_t all_reduce_bytes_sent(
    const Operation& operation, int rank, int size) {
  const auto num_peers = static_cast<std::size_t>(size - 1);
  const std::size_t bytes = operation.output_bytes;
  if (bytes <= kSmallBytes) {
    return bytes * num_peers;
  }
  const Counts counts = even_counts(operation.request.numel, size);
  const Slices slices(counts, operation.output_dtype);
  const std::size_t own = slices.sizes[static_cast<std::size_t>(rank)];
  return (bytes - own) + own * num_peers;
}

std::size_t broadcast_bytes_sent(
    const Operation& operation, int rank, int size) {
  const int root = operation.request.root;
  const std::size_t bytes = operation.output_bytes;
  if (bytes <= kSmallBytes || size <= 2) {
    return rank == root ? bytes * static_cast<std::size_t>(size - 1) : 0;
  }
  if (rank == root) {
    return bytes;
  }
  const Slices slices(
      broadcast_counts(operation, size), operation.output_dtype);
  return slices.sizes[static_cast<std::size_t>(rank)] *
         static_cast<std::size_t>(size - 2);
}

} // namespace

std::size_t bytes_sent(const Operation& operation, int rank, int size) {
  if (size == 1) {
    return 0;
  }
  switch (static_cast<Meeting>(operation.request.meeting)) {
    case Meeting::kAllGather: {
      std::size_t own = 0;
      for (const GatherPiece& piece : operation.pieces) {
        own += piece.rank == rank ? piece.bytes : 0;
      }
      return own * static_cast<std::size_t>(size - 1);
    }
    case Meeting::kReduceScatter: {
      const Slices slices(
          operation.counts, static_cast<DType>(operation.request.dtype));
      return operation.input_bytes -
             slices.sizes[static_cast<std::size_t>(rank)];
    }
    case Meeting::kAllReduce:
      return all_reduce_bytes_sent(operation, rank, size);
    case Meeting::kBroadcast:
      return broadcast_bytes_sent(operation, rank, size);
    default:
      return 0; // a meeting has no data
  }
}

void move_data(Operation& operation, PeerExchange& exchange) {
  switch (static_cast<Meeting>(operation.request.meeting)) {
    case Meeting::kAllGather:
      take_own_piece(operation, exchange.rank());
      gather(operation.output, operation.pieces, exchange);
      break;
    case Meeting::kReduceScatter:
      reduce_slices(
          operation,
          exchange,
          operation.counts,
          operation.input,
          operation.output);
      break;
    case Meeting::kAllReduce:
      all_reduce(operation, exchange);
      break;
    case Meeting::kBroadcast:
      broadcast(operation, exchange);
      break;
    default:
      break; // a meeting has no data
  }
}

} // namespace fsdp
