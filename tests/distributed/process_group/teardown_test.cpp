// However a program ends, it ends with its own exit status: nothing aborts,
// crashes or hangs in the destructors of what it left.

#include <gmock/gmock.h>

#include <chrono>
#include <string>

#include "support/process.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;

struct End {
  const char* backend;
  const char* way;
  int num_runs;
};

class Teardown : public ::testing::TestWithParam<End> {};

TEST_P(Teardown, LeavesTheExitStatusAlone) {
  testing::ChildProcess program(
      {FSDP_TEARDOWN_PROGRAM,
       GetParam().backend,
       GetParam().way,
       std::to_string(GetParam().num_runs)});
  const auto result = program.wait(240s);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(program.survivors(), ::testing::IsEmpty());
  if (std::string(GetParam().way) != "throw_out_of_main") {
    EXPECT_EQ(result.err, "");
  }
}

constexpr int kMany = 50;
constexpr int kSome = 10;

constexpr End kEnds[] = {
    {"gloo", "return", kMany},
    {"gloo", "exit", kMany},
    {"gloo", "throw_out_of_main", kMany},
    {"gloo", "return_amid_a_call", kMany},
    {"gloo", "exit_amid_a_call", kMany},
    {"gloo", "exit_amid_a_call_of_a_static_group", kMany},
    {"gloo", "return_with_a_static_group", kSome},
    {"gloo", "exit_with_a_static_made_after", kSome},
    {"gloo", "return_amid_a_call_of_one_rank", kSome},
    {"gloo", "exit_amid_a_call_of_one_rank", kSome},
    {"gloo", "return_an_error", kSome},
    {"gloo", "leave_after_a_failure", kSome},
    {"shm", "return", kSome},
    {"shm", "exit", kSome},
    {"shm", "throw_out_of_main", kSome},
    {"shm", "return_with_a_static_group", kSome},
    {"shm", "leave_after_a_failure", kSome},
};

INSTANTIATE_TEST_SUITE_P(
    Ways, Teardown, ::testing::ValuesIn(kEnds), [](const auto& tested) {
      return std::string(tested.param.backend) + "_" + tested.param.way;
    });

} // namespace
} // namespace fsdp
