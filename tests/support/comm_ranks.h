#pragma once
// Ranks as threads, each with its own Communicator.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/backend.h"
#include "comm/communicator.h"
#include "comm/rank_threads.h"
#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp::testing {

using RankBody = std::function<void(Communicator&)>;

/// Runs the body on `size` ranks, each with its own Communicator of a new
/// group, and throws what the first failing rank threw.
using RunWorld = std::function<void(
    int size, std::chrono::milliseconds timeout, const RankBody& body)>;

constexpr std::chrono::milliseconds kLongTimeout{60'000};

/// A world of threads over the registered backend `name`.
inline RunWorld backend_on_threads(std::string name) {
  return
      [name](
          int size, std::chrono::milliseconds timeout, const RankBody& body) {
        const auto store = std::make_shared<MemoryStore>();
        run_on_threads(size, [&](int rank) {
          BackendArgs args;
          args.store = store;
          args.rank = rank;
          args.size = size;
          args.timeout = timeout;
          args.group_name = "world";
          const auto communicator = make_communicator(name, args);
          try {
            body(*communicator);
          } catch (const std::exception& error) {
            communicator->fail(error.what());
            throw;
          }
        });
      };
}

inline std::string rank_text(int rank) {
  return "[rank " + std::to_string(rank) + "] ";
}

} // namespace fsdp::testing
