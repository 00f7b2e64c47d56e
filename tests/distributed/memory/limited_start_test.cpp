// A model whose training state is larger than what one rank may take starts
// from meta and trains on four.

#include <gmock/gmock.h>

#include "support/process.h"

namespace fsdp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

/// The state is 397 MB, a quarter of it 99 MB.
constexpr const char* kBudgetMegabytes = "300";

ProcessResult train_on(const std::string& num_ranks) {
  ChildProcess job(
      {FSDP_PROGRAM,
       "run",
       "-n",
       num_ranks,
       "--",
       FSDP_LIMITED_START_PROGRAM,
       kBudgetMegabytes});
  return job.wait(120s);
}

TEST(LimitedStart, FourRanksTrainWhatOneCannotHold) {
  const ProcessResult result = train_on("4");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* rank : {"0", "1", "2", "3"}) {
    EXPECT_THAT(
        result.out,
        HasSubstr("[rank " + std::string(rank) + "] trained: loss"));
  }
}

TEST(LimitedStart, OneRankCannot) {
  const ProcessResult result = train_on("1");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.out, Not(HasSubstr("trained")));
  EXPECT_THAT(result.err, HasSubstr("can't allocate memory"));
}

} // namespace
} // namespace fsdp::testing
