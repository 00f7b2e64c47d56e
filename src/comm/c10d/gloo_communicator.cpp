#include "comm/c10d/gloo_communicator.h"

#include <utility>

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

} // namespace

GlooCommunicator::GlooCommunicator(
    int rank,
    int size,
    std::chrono::milliseconds timeout,
    std::string group_name,
    std::unique_ptr<MessageLink> link)
    : Communicator(rank, size, "gloo", timeout),
      shared_counters_(&counters_, [](CommCounters*) {}),
      worker_(std::make_shared<GlooWorker>(
          rank, size, timeout, std::move(group_name), std::move(link))) {}

GlooCommunicator::~GlooCommunicator() {
  worker_->close(); // Works may keep it alive, but not running
}

std::shared_ptr<Work> GlooCommunicator::submit(
    std::shared_ptr<Operation> operation) {
  worker_->submit(operation);
  ++counters_.num_meetings;
  if (operation->has_data) {
    counters_.bytes_sent +=
        static_cast<std::int64_t>(bytes_sent(*operation, rank(), size()));
  }
  return std::make_shared<GlooWork>(
      worker_, std::move(operation), shared_counters_);
}

std::shared_ptr<Work> GlooCommunicator::start(const Collective& collective) {
  auto operation = std::make_shared<Operation>();
  operation->request = encode(collective.request, collective.layout);
  operation->counts.assign(collective.layout.begin(), collective.layout.end());
  operation->pieces.assign(collective.pieces.begin(), collective.pieces.end());
  operation->has_data = true;
  operation->output_dtype = collective.output_dtype;
  operation->input = collective.input;
  operation->input_bytes = collective.input_bytes;
  operation->output = collective.output;
  operation->output_bytes = collective.output_bytes;
  return submit(std::move(operation));
}

void GlooCommunicator::meet(const Request& request) {
  auto operation = std::make_shared<Operation>();
  operation->request = encode(request);
  submit(std::move(operation))->wait();
}

void GlooCommunicator::fail(std::string_view what) noexcept {
  worker_->fail(what);
}

std::uint64_t GlooCommunicator::epoch() const {
  return worker_->epoch();
}

} // namespace fsdp
