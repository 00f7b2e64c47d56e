#pragma once
// The link between ranks that are processes: descriptors over unix sockets to
// rank 0, and one pidfd for each rank's process.

#include <poll.h>

#include <vector>

#include "comm/host/host_link.h"
#include "comm/host/unix_socket.h"

namespace fsdp::host {

class ShmLink final : public HostLink {
 public:
  /// `sockets`: on rank 0 one to each other rank, elsewhere one to rank 0.
  /// `processes`: by rank.
  ShmLink(std::vector<UniqueFd> sockets, std::vector<UniqueFd> processes);

  void offer(
      std::uint64_t tag, const std::shared_ptr<SharedRegion>& region) override;
  std::shared_ptr<SharedRegion> take(
      std::uint64_t tag, std::size_t bytes) override;
  void find_ended(std::span<char> ended) override;

 private:
  std::vector<UniqueFd> sockets_;
  std::vector<UniqueFd> processes_;
  std::vector<pollfd> polled_; // by rank
};

} // namespace fsdp::host
