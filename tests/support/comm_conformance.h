#pragma once
// What every backend must do, as GoogleTest suites over a world of `size` ranks
// that are threads. A backend's test program includes this one header, and says
//
//   FSDP_INSTANTIATE_COMM_CONFORMANCE(Inproc, backend_on_threads("inproc"));

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "support/comm_ranks.h"

namespace fsdp::testing {

struct ConformanceWorld {
  int size = 1;
  RunWorld run;
};

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

} // namespace fsdp::testing

#define FSDP_INSTANTIATE_COMM_CONFORMANCE(prefix, ...)                         \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommData,                                                                \
      ::testing::ValuesIn(                                                     \
          ::fsdp::testing::worlds(__VA_ARGS__, {1, 2, 3, 4, 8})),              \
      ::fsdp::testing::world_name);                                            \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommReduction,                                                           \
      ::testing::ValuesIn(                                                     \
          ::fsdp::testing::worlds(__VA_ARGS__, {1, 2, 3, 4, 8})),              \
      ::fsdp::testing::world_name);                                            \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix,                                                                  \
      CommFailure,                                                             \
      ::testing::ValuesIn(::fsdp::testing::worlds(__VA_ARGS__, {2, 3, 4, 8})), \
      ::fsdp::testing::world_name)

#include "support/comm_conformance_data.h"
#include "support/comm_conformance_failures.h"
#include "support/comm_conformance_reductions.h"
