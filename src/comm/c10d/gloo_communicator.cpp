#include "comm/c10d/gloo_communicator.h"

#include <utility>

#include "comm/error_text.h"
#include "comm/reduce_kernels.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

/// Destroying it without wait() leaves the operation to the worker.
class GlooWork final : public Work {
 public:
  GlooWork(
      std::shared_ptr<GlooWorker> worker,
      std::shared_ptr<Operation> operation,
      std::weak_ptr<CommCounters> counters)
      : worker_(std::move(worker)),
        operation_(std::move(operation)),
        counters_(std::move(counters)) {}
  ~GlooWork() override { worker_->abandon(*operation_); }

  void wait() override {
    const auto waited = worker_->wait(*operation_);
    if (const auto counters = counters_.lock()) {
      counters->waited += waited;
    }
  }

 private:
  std::shared_ptr<GlooWorker> worker_;
  std::shared_ptr<Operation> operation_;
  std::weak_ptr<CommCounters> counters_;
};

std::size_t bytes_of(std::int64_t numel, DType dtype) {
  return static_cast<std::size_t>(numel) * size_of(dtype);
}

} // namespace

GlooCommunicator::GlooCommunicator(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    std::string group_name,
    std::unique_ptr<MessageLink> link)
    : Communicator(rank, size, "gloo", timeout),
      shared_counters_(&counters_, [](CommCounters*) {}),
      worker_(
          std::make_shared<GlooWorker>(
              rank, size, timeout, std::move(group_name), std::move(link))) {}

GlooCommunicator::~GlooCommunicator() {
  worker_->close(); // Works may keep it alive, but not running
}

std::int64_t GlooCommunicator::checked_total(
    std::span<const std::int64_t> counts, const Request& request) const {
  std::int64_t total = 0;
  bool has_negative = false;
  for (const std::int64_t count : counts) {
    has_negative = has_negative || count < 0;
    total += count;
  }
  if (counts.size() != static_cast<std::size_t>(size()) || has_negative) {
    throw UsageError(
        rank_prefix(rank()) + request.describe() + ": got " +
        std::to_string(counts.size()) + " counts" +
        (has_negative ? ", one of them negative" : "") +
        "; pass one for each of the " + std::to_string(size()) +
        " ranks, 0 or more");
  }
  return total;
}

std::shared_ptr<Work> GlooCommunicator::start(
    std::shared_ptr<Operation> operation, std::size_t bytes_to_send) {
  worker_->submit(operation);
  ++counters_.num_meetings;
  if (size() > 1) {
    counters_.bytes_sent += static_cast<std::int64_t>(bytes_to_send);
  }
  return std::make_shared<GlooWork>(
      worker_, std::move(operation), shared_counters_);
}

std::shared_ptr<Work> GlooCommunicator::all_gather(
    const void* input,
    void* output,
    std::span<const std::int64_t> counts,
    DType dtype,
    std::string_view subject) {
  Request request{
      .meeting = Meeting::kAllGather,
      .dtype = dtype,
      .subject = std::string(subject)};
  request.numel = checked_total(counts, request);
  ++counters_.num_all_gathers;
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request, counts);
  operation->counts.assign(counts.begin(), counts.end());
  operation->has_data = true;
  operation->output_dtype = dtype;
  operation->input = static_cast<const std::byte*>(input);
  operation->input_bytes =
      bytes_of(counts[static_cast<std::size_t>(rank())], dtype);
  operation->output = static_cast<std::byte*>(output);
  operation->output_bytes = bytes_of(request.numel, dtype);
  const auto num_peers = static_cast<std::size_t>(size() - 1);
  return start(operation, operation->input_bytes * num_peers);
}

std::shared_ptr<Work> GlooCommunicator::reduce_scatter(
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
  request.numel = checked_total(counts, request);
  check_reducible(rank(), request, output_dtype);
  ++counters_.num_reduce_scatters;
  const std::int64_t own = counts[static_cast<std::size_t>(rank())];
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request, counts);
  operation->counts.assign(counts.begin(), counts.end());
  operation->has_data = true;
  operation->output_dtype = output_dtype;
  operation->input = static_cast<const std::byte*>(input);
  operation->input_bytes = bytes_of(request.numel, input_dtype);
  operation->output = static_cast<std::byte*>(output);
  operation->output_bytes = bytes_of(own, output_dtype);
  return start(operation, bytes_of(request.numel - own, input_dtype));
}

void GlooCommunicator::all_reduce(
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
  check_reducible(rank(), request, dtype);
  ++counters_.num_all_reduces;
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request);
  operation->has_data = true;
  operation->output_dtype = dtype;
  operation->output = static_cast<std::byte*>(data);
  operation->output_bytes = bytes_of(numel, dtype);
  const std::size_t bytes = all_reduce_bytes_sent(*operation, rank(), size());
  start(std::move(operation), bytes)->wait();
}

void GlooCommunicator::broadcast(
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
  if (root < 0 || root >= size()) {
    throw UsageError(
        rank_prefix(rank()) + request.describe() + ": root is " +
        std::to_string(root) + "; it must be a rank from 0 to " +
        std::to_string(size() - 1));
  }
  ++counters_.num_broadcasts;
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request);
  operation->has_data = true;
  operation->output_dtype = dtype;
  operation->output = static_cast<std::byte*>(data);
  operation->output_bytes = bytes_of(numel, dtype);
  const std::size_t bytes = broadcast_bytes_sent(*operation, rank(), size());
  start(std::move(operation), bytes)->wait();
}

void GlooCommunicator::meet(const Request& request, std::uint64_t* masks) {
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request);
  start(operation, 0)->wait();
  if (masks != nullptr) {
    for (const WireRequest& of_rank : operation->requests) {
      *masks++ = of_rank.mask;
    }
  }
}

void GlooCommunicator::fail(std::string_view what) noexcept {
  worker_->fail(what);
}

std::uint64_t GlooCommunicator::epoch() const {
  return worker_->epoch();
}

} // namespace fsdp
