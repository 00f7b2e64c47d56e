#pragma once
// What every backend must do, as GoogleTest suites over a world of `size` ranks
// that are threads. A backend's test program includes this one header, and says
//
//   FSDP_INSTANTIATE_COMM_CONFORMANCE(Inproc, backend_on_threads("inproc"));

#include <gmock/gmock.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "fsdp/communicator.h"
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

struct ConformanceWorld {
  int size = 1;
  RunWorld run;
};

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

class CommWorld : public ::testing::TestWithParam<ConformanceWorld> {
 protected:
  int size() const { return GetParam().size; }
  void run(const RankBody& body) const {
    GetParam().run(size(), kLongTimeout, body);
  }
  void run_with_timeout(
      std::chrono::milliseconds timeout, const RankBody& body) const {
    GetParam().run(size(), timeout, body);
  }
};

/// Data arrives whole, at any number of ranks.
class CommData : public CommWorld {};
/// Sums, averages and maxima.
class CommReduction : public CommWorld {};
/// What goes wrong; two ranks and more.
class CommFailure : public CommWorld {};

inline std::vector<ConformanceWorld> worlds(
    const RunWorld& run, const std::vector<int>& sizes) {
  std::vector<ConformanceWorld> result;
  for (const int size : sizes) {
    result.push_back({size, run});
  }
  return result;
}

inline std::string world_name(
    const ::testing::TestParamInfo<ConformanceWorld>& info) {
  return std::to_string(info.param.size) + "Ranks";
}

} // namespace fsdp::test

#define FSDP_INSTANTIATE_COMM_CONFORMANCE(prefix, ...)                         \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommData,                                                                \
      ::testing::ValuesIn(::fsdp::test::worlds(__VA_ARGS__, {1, 2, 3, 4, 8})), \
      ::fsdp::test::world_name);                                               \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommReduction,                                                           \
      ::testing::ValuesIn(::fsdp::test::worlds(__VA_ARGS__, {1, 2, 3, 4, 8})), \
      ::fsdp::test::world_name);                                               \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommFailure,                                                             \
      ::testing::ValuesIn(::fsdp::test::worlds(__VA_ARGS__, {2, 3, 4, 8})),    \
      ::fsdp::test::world_name)

#include "support/comm_conformance_data.h"
#include "support/comm_conformance_failures.h"
#include "support/comm_conformance_reductions.h"
