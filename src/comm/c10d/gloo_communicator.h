#pragma once
// Communicator over Gloo: turns calls into operations of the worker.

#include <memory>
#include <string>

#include "comm/c10d/gloo_worker.h"
#include "comm/c10d/message_link.h"
#include "fsdp/communicator.h"

namespace fsdp {

class GlooCommunicator final : public Communicator {
 public:
  /// `link` is null for a group of one.
  GlooCommunicator(
      int rank,
      int size,
      std::chrono::milliseconds timeout,
      std::string group_name,
      std::unique_ptr<MessageLink> link);
  ~GlooCommunicator() override;

  std::shared_ptr<Work> all_gather(
      const void* input,
      void* output,
      std::span<const std::int64_t> counts,
      DType dtype,
      std::string_view subject) override;
  std::shared_ptr<Work> reduce_scatter(
      const void* input,
      DType input_dtype,
      void* output,
      DType output_dtype,
      std::span<const std::int64_t> counts,
      ReduceOp op,
      std::string_view subject) override;
  void all_reduce(
      void* data,
      std::int64_t numel,
      DType dtype,
      ReduceOp op,
      std::string_view subject) override;
  void broadcast(
      void* data,
      std::int64_t numel,
      DType dtype,
      int root,
      std::string_view subject) override;
  void meet(const Request& request, std::uint64_t* masks) override;
  void fail(std::string_view what) noexcept override;
  std::uint64_t epoch() const override;

 private:
  std::int64_t checked_total(
      std::span<const std::int64_t> counts, const Request& request) const;
  std::shared_ptr<Work> start(
      std::shared_ptr<Operation> operation, std::size_t bytes_to_send);

  std::shared_ptr<CommCounters> shared_counters_; ///< ends with this
  std::shared_ptr<GlooWorker> worker_;            ///< shared with Works
};

} // namespace fsdp
