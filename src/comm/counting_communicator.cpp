#include "comm/counting_communicator.h"

#include <cstring>

#include "core/shard_math.h"

namespace fsdp {
namespace {

class Done final : public Work {
 public:
  void wait() override {}
};

const GatherPiece* piece_of(std::span<const GatherPiece> pieces, int rank) {
  for (const GatherPiece& piece : pieces) {
    if (piece.rank == rank) {
      return &piece;
    }
  }
  return nullptr;
}

} // namespace

CountingCommunicator::CountingCommunicator(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    bool (*may_touch_data)(const void*))
    : Communicator(rank, size, "counting", timeout),
      may_touch_(may_touch_data) {}

void CountingCommunicator::meet(const Request&) {
  ++counters_.num_meetings;
}

void CountingCommunicator::fail(std::string_view) noexcept {
  ++epoch_;
}

std::shared_ptr<Work> CountingCommunicator::start(
    const Collective& collective) {
  ++counters_.num_meetings;
  counters_.bytes_sent += bytes_sent(collective);
  fill(collective);
  return std::make_shared<Done>();
}

std::int64_t CountingCommunicator::bytes_sent(
    const Collective& collective) const {
  const std::int64_t num_peers = size() - 1;
  const Request& request = collective.request;
  const auto output_bytes = static_cast<std::int64_t>(collective.output_bytes);
  switch (request.meeting) {
    case Meeting::kAllGather: {
      std::int64_t own = 0;
      for (const GatherPiece& piece : collective.pieces) {
        own +=
            piece.rank == rank() ? static_cast<std::int64_t>(piece.bytes) : 0;
      }
      return own * num_peers;
    }
    case Meeting::kReduceScatter: {
      const std::int64_t own =
          collective.layout[static_cast<std::size_t>(rank())];
      return (request.numel - own) *
             static_cast<std::int64_t>(size_of(request.dtype));
    }
    case Meeting::kAllReduce: {
      const std::int64_t own =
          shard_rows(request.numel, size(), rank()).length *
          static_cast<std::int64_t>(size_of(request.dtype));
      return output_bytes - own + own * num_peers;
    }
    case Meeting::kBroadcast:
      return rank() == request.root ? output_bytes * num_peers : 0;
    default:
      return 0; // a meeting has no data
  }
}

// What callers compare or count ranks with lies in memory; a unit's rows may
// not.
void CountingCommunicator::fill(const Collective& collective) const {
  if (!may_touch(collective.output) || collective.output_bytes == 0) {
    return;
  }
  const auto meeting = collective.request.meeting;
  if (meeting == Meeting::kReduceScatter) {
    if (may_touch(collective.input)) {
      std::memset(collective.output, 0, collective.output_bytes);
    }
    return;
  }
  const GatherPiece* own = piece_of(collective.pieces, rank());
  if (meeting != Meeting::kAllGather || own == nullptr) {
    return;
  }
  const std::byte* from = collective.input != nullptr
                              ? collective.input
                              : collective.output + own->offset;
  for (const GatherPiece& piece : collective.pieces) {
    std::byte* to = collective.output + piece.offset;
    if (piece.bytes == own->bytes && to != from) {
      std::memcpy(to, from, piece.bytes);
    }
  }
}

bool CountingCommunicator::may_touch(const void* data) const {
  return may_touch_ == nullptr || may_touch_(data);
}

} // namespace fsdp
