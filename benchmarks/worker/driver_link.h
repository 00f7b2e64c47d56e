#pragma once
// The worker's end of the line to the driver (docs/benchmarking.md): a rank
// that waits for a command blocks in a read and uses no processor.

#include <optional>
#include <string>

#include "core/unique_fd.h"

namespace fsdp::bench {

class DriverLink {
 public:
  /// Connects to the unix socket that FSDP_BENCH_SOCKET names. Throws
  /// ConfigError if it is unset or nobody listens there.
  DriverLink();

  /// Sends one line; `text` holds no line break.
  void send(const std::string& text);
  /// The next line; none once the driver has hung up.
  std::optional<std::string> receive();

 private:
  UniqueFd fd_;
  std::string received_;
};

} // namespace fsdp::bench
