#include "fsdp/communicator.h"

#include <utility>

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

Communicator::Communicator(
    int rank, int size, std::string backend, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      backend_(std::move(backend)),
      timeout_(timeout) {}

void Communicator::barrier(std::string_view subject) {
  meet({.meeting = Meeting::kBarrier, .subject = std::string(subject)});
}

} // namespace fsdp
