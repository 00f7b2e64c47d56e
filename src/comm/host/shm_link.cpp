#include "comm/host/shm_link.h"

#include <utility>

#include "fsdp/error.h"

namespace fsdp::host {

ShmLink::ShmLink(std::vector<UniqueFd> sockets, std::vector<UniqueFd> processes)
    : sockets_(std::move(sockets)), processes_(std::move(processes)) {
  for (const UniqueFd& process : processes_) {
    polled_.push_back({process.get(), POLLIN, 0});
  }
}

// A rank that has gone is noticed by the fence that follows.
void ShmLink::offer(
    std::uint64_t tag, const std::shared_ptr<SharedRegion>& region) {
  const int fd = region->fd();
  for (const UniqueFd& socket : sockets_) {
    send_descriptors(socket, tag, std::span(&fd, 1));
  }
}

std::shared_ptr<SharedRegion> ShmLink::take(
    std::uint64_t tag, std::size_t bytes) {
  while (true) {
    Received received = receive_descriptors(sockets_.front());
    if (received.tag != tag) {
      continue; // of an allocation that failed half-way
    }
    if (received.descriptors.size() != 1) {
      throw CommError("rank 0 has sent no shared region");
    }
    return SharedRegion::adopt(received.descriptors[0].release(), bytes);
  }
}

void ShmLink::find_ended(std::span<char> ended) {
  poll(polled_.data(), polled_.size(), 0);
  for (std::size_t rank = 0; rank < ended.size(); ++rank) {
    ended[rank] = (polled_[rank].revents & POLLIN) != 0 ? 1 : 0;
  }
}

} // namespace fsdp::host
