#pragma once
// What differs between ranks that are one, threads, or processes: how a region
// gets from rank 0 to the others, and how an ended process is noticed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/host_memory.h"

namespace fsdp::host {

class HostLink {
 public:
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  virtual ~HostLink() = default;

  /// Rank 0 hands `region` to all others. Never waits for them. `tag` grows
  /// from one region to the next. Throws CommError.
  virtual void offer(
      std::uint64_t tag, const std::shared_ptr<SharedRegion>& region) = 0;

  /// Another rank takes the region that rank 0 has already offered under `tag`;
  /// older ones that were never taken are dropped. Throws CommError.
  virtual std::shared_ptr<SharedRegion> take(
      std::uint64_t tag, std::size_t bytes) = 0;

  /// Sets ended[r] for each rank whose process is known to have ended.
  virtual void find_ended(std::span<char> ended) = 0;

 protected:
  HostLink() = default;
};

} // namespace fsdp::host
