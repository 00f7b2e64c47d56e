#pragma once
// Communicator over Gloo: turns calls into operations of the worker.

#include <memory>
#include <string>

#include "comm/c10d/gloo_worker.h"
#include "comm/c10d/message_link.h"
#include "comm/communicator.h"

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

  void meet(const Request& request) override;
  void fail(std::string_view what) noexcept override;
  std::uint64_t epoch() const override;

 private:
  std::shared_ptr<Work> start(const Collective& collective) override;
  std::shared_ptr<Work> submit(std::shared_ptr<Operation> operation);

  std::shared_ptr<CommCounters> shared_counters_; ///< ends with this
  std::shared_ptr<GlooWorker> worker_;            ///< shared with Works
};

} // namespace fsdp
