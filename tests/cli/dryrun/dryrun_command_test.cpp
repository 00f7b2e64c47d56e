// `fsdp dryrun` as a process.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"

namespace fsdp::testing {
namespace {

using Arguments = std::vector<std::string>;

ProcessResult run(Arguments options) {
  options.insert(options.begin(), {FSDP_PROGRAM, "dryrun"});
  return run_process(options, {}, std::chrono::seconds(60));
}

void expect_refused(const Arguments& options, const std::string& line) {
  const ProcessResult result = run(options);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "fsdp dryrun: " + line + "\n");
  EXPECT_EQ(result.out, "");
}

TEST(DryrunCommand, CountsARankOfThousands) {
  const ProcessResult result =
      run({"-n", "4096", "--preset", "tiny", "--rank", "4095", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("world_size"), 4096);
  EXPECT_EQ(json.at("batch"), 4096); // one sequence a rank at least
  // More ranks than rows: the last one owns none.
  EXPECT_EQ(json.at("step_bytes").at("parameters").at("peak"), 0);
  EXPECT_GT(json.at("step_bytes").at("gathered").at("peak"), 0);
  EXPECT_EQ(json.at("reduce_scatters"), 3); // the root and two blocks
}

TEST(DryrunCommand, PrintsTables) {
  const ProcessResult result = run({"-n", "2", "--preset", "words"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"rank 0 of 2, preset words, ",
        "\n  optimizer state ",
        "\n  all-gathers ",
        "\n  bytes sent "}) {
    EXPECT_THAT(result.out, ::testing::HasSubstr(part));
  }
}

TEST(DryrunCommand, RefusesWhatMakesNoRun) {
  expect_refused({}, "-n is missing: give the number of ranks");
  expect_refused(
      {"-n", "0"}, "-n is \"0\": expected a whole number of 1 or more");
  expect_refused(
      {"-n", "1000000"}, "-n is 1000000: expected at most 100000 ranks");
  expect_refused(
      {"-n", "2", "--rank", "2"},
      "--rank is 2: expected 0 to 1, the last of -n 2");
  expect_refused(
      {"-n", "3", "--batch", "4"},
      "--batch 4 does not divide over 3 ranks: choose a multiple of 3");
}

} // namespace
} // namespace fsdp::testing
