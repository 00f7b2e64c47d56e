#include "comm/communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/error_text.h"
#include "comm/reduce_kernels.h"
#include "fsdp/error.h"

namespace fsdp {

std::string_view name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBarrier:
      return "barrier";
    case Meeting::kAllGather:
      return "all_gather";
    case Meeting::kBroadcast:
      return "broadcast";
    case Meeting::kReduceScatter:
      return "reduce_scatter";
    case Meeting::kAllReduce:
      return "all_reduce";
    case Meeting::kAllocate:
      return "allocate";
    case Meeting::kForward:
      return "forward";
    case Meeting::kPublished:
      return "published";
    case Meeting::kUnshard:
      return "unshard";
    case Meeting::kGradients:
      return "gradients";
    case Meeting::kBackwardEnd:
      return "backward_end";
    case Meeting::kSplit:
      return "split";
    case Meeting::kFullyShard:
      return "fully_shard";
  }
  return "unknown";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown";
}

namespace {

std::string elements(DType dtype, std::int64_t numel) {
  return std::string(name_of(dtype)) + ", " + std::to_string(numel) +
         (numel == 1 ? " element" : " elements");
}

std::string arguments(const Request& request) {
  switch (request.meeting) {
    case Meeting::kAllGather:
      return elements(request.dtype, request.numel);
    case Meeting::kBroadcast:
      return elements(request.dtype, request.numel) + ", root " +
             std::to_string(request.root);
    case Meeting::kReduceScatter:
    case Meeting::kAllReduce:
    case Meeting::kGradients:
      return std::string(name_of(request.op)) + ", " +
             elements(request.dtype, request.numel);
    case Meeting::kAllocate:
      return std::to_string(request.numel) + " bytes";
    case Meeting::kForward:
      return request.grad_enabled ? "with grad" : "without grad";
    case Meeting::kBarrier:
    case Meeting::kPublished:
    case Meeting::kUnshard:
    case Meeting::kBackwardEnd:
    case Meeting::kSplit:
    case Meeting::kFullyShard:
      break;
  }
  return request.numel == 0 ? "" : elements(request.dtype, request.numel);
}

} // namespace

std::string Request::describe() const {
  std::string text(name_of(meeting));
  if (const std::string inner = arguments(*this); !inner.empty()) {
    text += '(' + inner + ')';
  }
  if (subject.empty()) {
    return text;
  }
  // A subject such as "unit 'layers.0'" already says what is a name in it.
  const bool is_quoted = subject.find('\'') != std::string::npos;
  return text + " for " + (is_quoted ? subject : '\'' + subject + '\'');
}

namespace {

std::size_t bytes_of(std::int64_t numel, DType dtype) {
  return static_cast<std::size_t>(numel) * size_of(dtype);
}

/// sum(counts), of a call of `rank` in a group of `size`.
std::int64_t checked_total(
    std::span<const std::int64_t> counts,
    const Request& request,
    int rank,
    int size) {
  std::int64_t total = 0;
  bool has_negative = false;
  for (const std::int64_t count : counts) {
    has_negative = has_negative || count < 0;
    total += count;
  }
  if (counts.size() != static_cast<std::size_t>(size) || has_negative) {
    throw UsageError(
        rank_prefix(rank) + request.describe() + ": got " +
        std::to_string(counts.size()) + " counts" +
        (has_negative ? ", one of them negative" : "") +
        "; pass one for each of the " + std::to_string(size) +
        " ranks, 0 or more");
  }
  return total;
}

void check_numel(const Request& request, int rank) {
  if (request.numel < 0) {
    throw UsageError(
        rank_prefix(rank) + request.describe() +
        ": the number of elements must be 0 or more");
  }
}

void check_root(const Request& request, int rank, int size) {
  if (request.root < 0 || request.root >= size) {
    throw UsageError(
        rank_prefix(rank) + request.describe() + ": root is " +
        std::to_string(request.root) + "; it must be a rank from 0 to " +
        std::to_string(size - 1));
  }
}

} // namespace

Communicator::Communicator(
    int rank, int size, std::string backend, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      backend_(std::move(backend)),
      timeout_(timeout) {}

std::shared_ptr<Work> Communicator::all_gather(
    const void* input,
    void* output,
    std::span<const std::int64_t> counts,
    DType dtype,
    std::string_view subject) {
  Request request{
      .meeting = Meeting::kAllGather,
      .dtype = dtype,
      .subject = std::string(subject)};
  request.numel = checked_total(counts, request, rank_, size_);
  auto* const buffer = static_cast<std::byte*>(output);
  std::vector<GatherPiece> pieces;
  std::size_t begin = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const std::size_t bytes =
        bytes_of(counts[static_cast<std::size_t>(rank)], dtype);
    pieces.push_back({rank, begin, bytes});
    begin += bytes;
  }
  const GatherPiece& own = pieces[static_cast<std::size_t>(rank_)];
  const bool is_in_place = own.bytes == 0 || input == buffer + own.offset;
  ++counters_.num_all_gathers;
  return start(
      {.request = request,
       .layout = counts,
       .pieces = pieces,
       .input = is_in_place ? nullptr : static_cast<const std::byte*>(input),
       .input_bytes = is_in_place ? 0 : own.bytes,
       .output = buffer,
       .output_bytes = begin,
       .output_dtype = dtype});
}

std::shared_ptr<Work> Communicator::all_gather_in_place(
    void* buffer,
    std::span<const GatherPiece> pieces,
    std::string_view subject) {
  Request request{
      .meeting = Meeting::kAllGather,
      .dtype = DType::kUInt8,
      .subject = std::string(subject)};
  std::vector<std::int64_t> layout;
  std::size_t end = 0;
  for (const GatherPiece& piece : pieces) {
    if (piece.rank < 0 || piece.rank >= size_) {
      throw UsageError(
          rank_prefix(rank_) + request.describe() + ": a piece is rank " +
          std::to_string(piece.rank) + "'s; pass ranks from 0 to " +
          std::to_string(size_ - 1));
    }
    request.numel += static_cast<std::int64_t>(piece.bytes);
    end = std::max(end, piece.offset + piece.bytes);
    layout.push_back(piece.rank);
    layout.push_back(static_cast<std::int64_t>(piece.offset));
    layout.push_back(static_cast<std::int64_t>(piece.bytes));
  }
  ++counters_.num_all_gathers;
  return start(
      {.request = request,
       .layout = layout,
       .pieces = pieces,
       .output = static_cast<std::byte*>(buffer),
       .output_bytes = end,
       .output_dtype = DType::kUInt8});
}

std::shared_ptr<Work> Communicator::reduce_scatter(
    const void* input,
    DType input_dtype,
    void* output,
    DType output_dtype,
    std::span<const std::int64_t> counts,
    ReduceOp op,
    std::string_view subject) {
  Request request{
      .meeting = Meeting::kReduceScatter,
      .dtype = input_dtype,
      .op = op,
      .subject = std::string(subject)};
  request.numel = checked_total(counts, request, rank_, size_);
  check_reducible(rank_, request, output_dtype);
  ++counters_.num_reduce_scatters;
  const std::int64_t own = counts[static_cast<std::size_t>(rank_)];
  return start(
      {.request = request,
       .layout = counts,
       .input = static_cast<const std::byte*>(input),
       .input_bytes = bytes_of(request.numel, input_dtype),
       .output = static_cast<std::byte*>(output),
       .output_bytes = bytes_of(own, output_dtype),
       .output_dtype = output_dtype});
}

void Communicator::all_reduce(
    void* data,
    std::int64_t numel,
    DType dtype,
    ReduceOp op,
    std::string_view subject) {
  const Request request{
      .meeting = Meeting::kAllReduce,
      .dtype = dtype,
      .op = op,
      .numel = numel,
      .subject = std::string(subject)};
  check_numel(request, rank_);
  check_reducible(rank_, request, dtype);
  ++counters_.num_all_reduces;
  start({.request = request,
         .output = static_cast<std::byte*>(data),
         .output_bytes = bytes_of(numel, dtype),
         .output_dtype = dtype})
      ->wait();
}

void Communicator::broadcast(
    void* data,
    std::int64_t numel,
    DType dtype,
    int root,
    std::string_view subject) {
  const Request request{
      .meeting = Meeting::kBroadcast,
      .dtype = dtype,
      .root = root,
      .numel = numel,
      .subject = std::string(subject)};
  check_numel(request, rank_);
  check_root(request, rank_, size_);
  ++counters_.num_broadcasts;
  start({.request = request,
         .output = static_cast<std::byte*>(data),
         .output_bytes = bytes_of(numel, dtype),
         .output_dtype = dtype})
      ->wait();
}

void Communicator::barrier(std::string_view subject) {
  meet({.meeting = Meeting::kBarrier, .subject = std::string(subject)});
}

} // namespace fsdp
