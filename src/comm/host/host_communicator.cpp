#include "comm/host/host_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/error_text.h"
#include "comm/reduce_kernels.h"
#include "fsdp/error.h"

namespace fsdp::host {

namespace {

constexpr std::size_t kSmallBytes = 32 << 10;

class DoneWork final : public Work {
 public:
  void wait() override {}
};

std::shared_ptr<Work> done() {
  static const auto work = std::make_shared<DoneWork>();
  return work;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Elements [k * chunk, (k + 1) * chunk) of `numel`: how many there are.
std::int64_t length_of_chunk(
    std::int64_t numel, std::int64_t chunk, std::int64_t k) {
  return std::clamp<std::int64_t>(numel - k * chunk, 0, chunk);
}

std::size_t bytes_of(std::int64_t numel, DType dtype) {
  return static_cast<std::size_t>(numel) * size_of(dtype);
}

// Null and 0 bytes are a fine empty shard, but not to memcpy.
void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

/// One round of a gather: of the pieces of `rank`, one after the other, bytes
/// [begin, begin + kStagingBytes). Calls f(offset in the buffer, offset in the
/// staging memory, bytes).
template <typename F>
void for_each_part(
    std::span<const GatherPiece> pieces,
    int rank,
    std::size_t begin,
    const F& f) {
  const std::size_t end = begin + kStagingBytes;
  std::size_t at = 0;
  for (const GatherPiece& piece : pieces) {
    if (piece.rank != rank) {
      continue;
    }
    const std::size_t from = std::max(at, begin);
    const std::size_t to = std::min(at + piece.bytes, end);
    if (from < to) {
      f(piece.offset + (from - at), from - begin, to - from);
    }
    at += piece.bytes;
  }
}

} // namespace

HostCommunicator::HostCommunicator(
    int rank,
    int size,
    std::string backend,
    std::chrono::milliseconds timeout,
    std::shared_ptr<SharedRegion> control,
    std::unique_ptr<HostLink> link)
    : Communicator(rank, size, std::move(backend), timeout),
      group_(
          rank, size, timeout, std::move(control), std::move(link), counters_),
      inputs_(static_cast<std::size_t>(size)) {}

// Writes this rank's buffer of the next round, and returns the round once all
// ranks have written theirs.
template <class Write>
std::uint64_t HostCommunicator::exchange(Call& call, Write write) {
  group_.open_epoch();
  if (round_epoch_ != group_.epoch()) {
    round_epoch_ = group_.epoch();
    round_ = 0;
  }
  const std::uint64_t round = round_++;
  if (size() > 1) {
    write(group_.control().staging(rank(), round));
  }
  if (call.has_met) {
    group_.fence(call.request);
  } else {
    group_.meet(call.request);
    call.has_met = true;
  }
  return round;
}

const std::byte* HostCommunicator::buffer_of(
    int from, std::uint64_t round) const {
  return group_.control().staging(from, round);
}

void HostCommunicator::copy_in(
    std::byte* to, const void* from, std::size_t bytes) {
  copy(to, from, bytes);
  counters_.bytes_sent += static_cast<std::int64_t>(bytes);
}

std::shared_ptr<Work> HostCommunicator::start(const Collective& collective) {
  Call call{encode(collective.request, collective.layout)};
  switch (collective.request.meeting) {
    case Meeting::kAllGather:
      all_gather_staged(call, collective);
      break;
    case Meeting::kReduceScatter:
      reduce_scatter_staged(call, collective);
      break;
    case Meeting::kAllReduce:
      all_reduce_staged(call, collective);
      break;
    case Meeting::kBroadcast:
      broadcast_staged(call, collective);
      break;
    default:
      break; // a meeting has no data
  }
  return done();
}

void HostCommunicator::all_gather_staged(
    Call& call, const Collective& collective) {
  std::vector<std::size_t> bytes_of_rank(static_cast<std::size_t>(size()));
  for (const GatherPiece& piece : collective.pieces) {
    bytes_of_rank[static_cast<std::size_t>(piece.rank)] += piece.bytes;
  }
  const std::size_t most =
      *std::max_element(bytes_of_rank.begin(), bytes_of_rank.end());
  std::size_t begin = 0;
  do {
    const std::uint64_t at = exchange(call, [&](std::byte* to) {
      for_each_part(
          collective.pieces,
          rank(),
          begin,
          [&](std::size_t offset, std::size_t staged, std::size_t bytes) {
            const std::byte* from = collective.input != nullptr
                                        ? collective.input + begin + staged
                                        : collective.output + offset;
            copy_in(to + staged, from, bytes);
          });
    });
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank() && collective.input == nullptr) {
        continue; // it is there
      }
      const std::byte* from =
          peer == rank() ? collective.input + begin : buffer_of(peer, at);
      for_each_part(
          collective.pieces,
          peer,
          begin,
          [&](std::size_t offset, std::size_t staged, std::size_t bytes) {
            copy(collective.output + offset, from + staged, bytes);
          });
    }
    begin += kStagingBytes;
  } while (begin < most);
}

void HostCommunicator::broadcast_staged(
    Call& call, const Collective& collective) {
  const std::int64_t numel = collective.request.numel;
  const DType dtype = collective.output_dtype;
  const int root = collective.request.root;
  const auto chunk = static_cast<std::int64_t>(kStagingBytes / size_of(dtype));
  const std::int64_t num_rounds =
      std::max<std::int64_t>(1, divide_up(numel, chunk));
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    std::byte* part = collective.output + bytes_of(k * chunk, dtype);
    const std::size_t bytes = bytes_of(length_of_chunk(numel, chunk, k), dtype);
    const std::uint64_t at = exchange(call, [&](std::byte* to) {
      if (rank() == root) {
        copy_in(to, part, bytes);
      }
    });
    if (rank() != root) {
      copy(part, buffer_of(root, at), bytes);
    }
  }
}

// What a rank can put down for each other rank at once; a multiple of 64 bytes,
// for aligned loads.
std::int64_t HostCommunicator::piece_numel(std::size_t element_bytes) const {
  const std::size_t bytes =
      kStagingBytes / static_cast<std::size_t>(size()) / 64 * 64;
  return static_cast<std::int64_t>(bytes / element_bytes);
}

// Reduces what all ranks have written at byte `offset` of their buffers; this
// rank's part is read at `own`.
void HostCommunicator::reduce_piece(
    const Call& call,
    std::uint64_t round,
    std::size_t offset,
    const void* own,
    void* output,
    DType output_dtype,
    std::int64_t numel) {
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] =
        peer == rank() ? own : buffer_of(peer, round) + offset;
  }
  reduce_in_rank_order(
      inputs_,
      static_cast<DType>(call.request.dtype),
      output,
      output_dtype,
      numel,
      static_cast<ReduceOp>(call.request.op),
      size());
}

void HostCommunicator::reduce_scatter_staged(
    Call& call, const Collective& collective) {
  const auto& counts = collective.layout;
  const DType input_dtype = collective.request.dtype;
  const DType output_dtype = collective.output_dtype;
  const std::int64_t chunk = piece_numel(size_of(input_dtype));
  const std::int64_t largest = *std::max_element(counts.begin(), counts.end());
  const std::int64_t num_rounds =
      std::max<std::int64_t>(1, divide_up(largest, chunk));
  const std::byte* in = collective.input;
  const std::byte* own = in;
  for (int peer = 0; peer < rank(); ++peer) {
    own += bytes_of(counts[static_cast<std::size_t>(peer)], input_dtype);
  }
  for (std::int64_t k = 0; k < num_rounds; ++k) {
    const std::size_t offset = bytes_of(k * chunk, input_dtype);
    const std::uint64_t at = exchange(call, [&](std::byte* to) {
      const std::byte* from = in;
      for (int peer = 0; peer < size(); ++peer) {
        const std::int64_t count = counts[static_cast<std::size_t>(peer)];
        const std::int64_t length = length_of_chunk(count, chunk, k);
        if (peer != rank() && length > 0) {
          copy_in(
              to + bytes_of(chunk * peer, input_dtype),
              from + offset,
              bytes_of(length, input_dtype));
        }
        from += bytes_of(count, input_dtype);
      }
    });
    const std::int64_t length =
        length_of_chunk(counts[static_cast<std::size_t>(rank())], chunk, k);
    if (length > 0) {
      reduce_piece(
          call,
          at,
          bytes_of(chunk * rank(), input_dtype),
          own + offset,
          collective.output + bytes_of(k * chunk, output_dtype),
          output_dtype,
          length);
    }
  }
}

void HostCommunicator::all_reduce_staged(
    Call& call, const Collective& collective) {
  const std::int64_t numel = collective.request.numel;
  const DType dtype = collective.output_dtype;
  std::byte* bytes = collective.output;
  if (size() == 1 || bytes_of(numel, dtype) <= kSmallBytes) {
    all_reduce_small(call, bytes, numel);
    return;
  }
  const std::int64_t span = piece_numel(size_of(dtype)) * size();
  for (std::int64_t begin = 0; begin < numel; begin += span) {
    all_reduce_span(
        call, bytes + bytes_of(begin, dtype), std::min(span, numel - begin));
  }
}

// Every rank reduces everything: one round.
void HostCommunicator::all_reduce_small(
    Call& call, std::byte* data, std::int64_t numel) {
  const auto dtype = static_cast<DType>(call.request.dtype);
  const std::uint64_t at = exchange(
      call, [&](std::byte* to) { copy_in(to, data, bytes_of(numel, dtype)); });
  if (numel > 0) {
    reduce_piece(call, at, 0, data, data, dtype, numel);
  }
}

// Each rank reduces one piece, and the pieces are gathered: two rounds.
void HostCommunicator::all_reduce_span(
    Call& call, std::byte* data, std::int64_t numel) {
  const auto dtype = static_cast<DType>(call.request.dtype);
  const std::int64_t piece = divide_up(numel, size());
  const std::size_t piece_bytes = bytes_of(piece_numel(size_of(dtype)), dtype);
  const auto piece_of = [&](int peer) {
    return data + bytes_of(piece * peer, dtype);
  };
  const auto length_of = [&](int peer) {
    return length_of_chunk(numel, piece, peer);
  };
  const std::uint64_t at = exchange(call, [&](std::byte* to) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && length_of(peer) > 0) {
        copy_in(
            to + piece_bytes * static_cast<std::size_t>(peer),
            piece_of(peer),
            bytes_of(length_of(peer), dtype));
      }
    }
  });
  const std::uint64_t gathered = exchange(call, [&](std::byte* to) {
    if (length_of(rank()) > 0) {
      reduce_piece(
          call,
          at,
          piece_bytes * static_cast<std::size_t>(rank()),
          piece_of(rank()),
          to,
          dtype,
          length_of(rank()));
      counters_.bytes_sent +=
          static_cast<std::int64_t>(bytes_of(length_of(rank()), dtype));
    }
  });
  for (int peer = 0; peer < size(); ++peer) {
    if (length_of(peer) > 0) {
      copy(
          piece_of(peer),
          buffer_of(peer, gathered),
          bytes_of(length_of(peer), dtype));
    }
  }
}

void HostCommunicator::meet(const Request& request) {
  group_.meet(encode(request));
}

void HostCommunicator::fail(std::string_view what) noexcept {
  group_.fail(what);
}

std::uint64_t HostCommunicator::epoch() const {
  return group_.epoch();
}

std::shared_ptr<SharedRegion> HostCommunicator::allocate(
    std::size_t bytes, std::string_view label) {
  const WireRequest request = encode(
      {.meeting = Meeting::kAllocate,
       .numel = static_cast<std::int64_t>(bytes),
       .subject = std::string(label)});
  group_.meet(request);
  const std::uint64_t tag = group_.position();
  std::shared_ptr<SharedRegion> region;
  // Told to the others at once: they wait in the fences below.
  const auto or_fail = [&](auto action) {
    try {
      action();
    } catch (const CommError& error) {
      group_.fail(error.what());
      throw CommError(rank_prefix(rank()) + error.what());
    }
  };
  if (rank() == 0) {
    or_fail([&] {
      region = SharedRegion::create(bytes, label);
      group_.link().offer(tag, region);
    });
  }
  group_.fence(request);
  if (rank() != 0) {
    or_fail([&] { region = group_.link().take(tag, bytes); });
  }
  group_.fence(request);
  return region;
}

std::uint64_t HostCommunicator::post(const Request& request) {
  return group_.post(encode(request));
}

void HostCommunicator::wait_post_slot() {
  group_.wait_post_slot();
}

void HostCommunicator::await(std::uint64_t number) {
  group_.await(number);
}

void HostCommunicator::consume(std::uint64_t number) {
  group_.consume(number);
}

} // namespace fsdp::host
