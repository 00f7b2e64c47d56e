#pragma once
// Ranks as threads, each with its own Communicator.

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "comm/communicator.h"
#include "fsdp/error.h"

namespace fsdp::test {

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
        std::mutex mutex;
        std::exception_ptr first;
        std::vector<std::thread> threads;
        for (int rank = 0; rank < size; ++rank) {
          threads.emplace_back([&, rank] {
            std::unique_ptr<Communicator> communicator;
            try {
              BackendArgs args;
              args.store = store;
              args.rank = rank;
              args.size = size;
              args.timeout = timeout;
              args.group_name = "world";
              communicator = make_communicator(name, args);
              body(*communicator);
            } catch (const std::exception& error) {
              {
                const std::lock_guard lock(mutex);
                if (first == nullptr) {
                  first = std::current_exception();
                }
              }
              if (communicator != nullptr) {
                communicator->fail(error.what());
              }
            }
          });
        }
        for (std::thread& thread : threads) {
          thread.join();
        }
        if (first != nullptr) {
          std::rethrow_exception(first);
        }
      };
}

inline std::string rank_text(int rank) {
  return "[rank " + std::to_string(rank) + "] ";
}

/// The text of the `Expected` error that `action` throws; a test failure, and
/// an empty text, if it throws none or another.
template <class Expected, class Action>
std::string thrown_text(Action action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

} // namespace fsdp::test
