// `fsdp simulate` and `fsdp trace` through the program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"

namespace fsdp::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

ProcessResult run_fsdp(std::vector<std::string> args) {
  args.insert(args.begin(), FSDP_PROGRAM);
  return ChildProcess(args).wait(60s);
}

std::vector<std::string> simulate_args(std::vector<std::string> more) {
  std::vector<std::string> args{
      "simulate", "--model", "llama3-8b", "--nodes", "2", "--batch", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

json simulated(std::vector<std::string> more) {
  more.emplace_back("--json");
  const ProcessResult result = run_fsdp(simulate_args(std::move(more)));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

void expect_refused(
    const std::vector<std::string>& args, const std::string& line) {
  const ProcessResult result = run_fsdp(args);
  EXPECT_EQ(result.err, "fsdp " + args.front() + ": " + line + "\n");
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.exit_code, 2);
}

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("fsdp_") + test->name() + ".json");
  }
  ~TraceFile() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

TEST(SimulateCommand, PrintsWhatTakesHowLong) {
  const ProcessResult result = run_fsdp(simulate_args({}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"llama3-8b, full_shard on 16 x H100-SXM-80GB",
        " a step  ",
        "  exposed communication  ",
        "  tokens a second  ",
        "  MFU  "}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(SimulateCommand, JsonHasTheFiguresInSeconds) {
  const json step = simulated({});
  EXPECT_EQ(step.at("ranks"), 16);
  const double seconds = step.at("step_s");
  EXPECT_GT(seconds, 0.1);
  EXPECT_LT(seconds, 10);
  EXPECT_NEAR(
      step.at("tokens_per_second").get<double>(),
      16 * 2 * 2048 / seconds,
      1e-6 * 16 * 2 * 2048 / seconds);
  EXPECT_GT(step.at("mfu"), 0.1);
  EXPECT_LT(step.at("mfu"), 0.8);
  EXPECT_EQ(step.at("units").size(), 33U); // the root and 32 blocks
}

TEST(SimulateCommand, ConditionsChangeTheStep) {
  const double plain = simulated({}).at("step_s");
  EXPECT_GT(simulated({"--slow-link", "0.05"}).at("step_s"), plain);
  EXPECT_GT(simulated({"--straggler", "1.5"}).at("step_s"), 1.3 * plain);
  EXPECT_EQ(simulated({"--bucket-mb", "1000"}).at("units").size(), 1U + 11U);
}

TEST(SimulateCommand, RefusesWhatMakesNoSense) {
  expect_refused(
      simulate_args({"--slow-link", "0"}),
      "--slow-link is \"0\": expected a number from 1e-06 to 1");
  expect_refused(
      simulate_args({"--straggler", "0.5"}),
      "--straggler is \"0.5\": expected a number from 1 to 1e+06");
  expect_refused(
      simulate_args({"--bucket-mb", "-1"}),
      "--bucket-mb is \"-1\": expected a number from 0 to 1e+09");
  expect_refused(
      simulate_args({"--straggler", "nan"}),
      "--straggler is \"nan\": expected a number from 1 to 1e+06");
  expect_refused(
      {"simulate", "--model", "llama3-8b", "--device", "L4", "--nodes", "2"},
      "device 'L4' has no bandwidth between nodes, which the ranks of this job "
      "use: give it by a flag, or choose another device");
}

TEST_F(TraceFile, TheTimelineTellsWhatTheSimulationTold) {
  const json step =
      simulated({"--trace", path_.string(), "--slow-link", "0.1"});
  const ProcessResult result = run_fsdp({"trace", path_.string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json diagnosis = json::parse(result.out);
  const double near = 1e-5; // the file has whole nanoseconds
  EXPECT_NEAR(diagnosis.at("seconds"), step.at("step_s"), near);
  EXPECT_NEAR(diagnosis.at("exposed_s"), step.at("exposed_s"), near);
  EXPECT_NEAR(
      diagnosis.at("communication_s"), step.at("communication_s"), near);
  EXPECT_NEAR(diagnosis.at("optimizer_s"), step.at("optimizer_s"), near);
  EXPECT_THAT(
      diagnosis.at("advice").at(0).get<std::string>(),
      HasSubstr("raise the batch of a rank"));
}

TEST_F(TraceFile, TheDiagnosisIsPlainLines) {
  std::ofstream(path_) << R"({"traceEvents": [
    {"name": "g", "cat": "unshard", "ph": "X", "ts": 0, "dur": 2000,
     "args": {"unit": "blocks.0"}},
    {"name": "f", "cat": "compute", "ph": "X", "ts": 2000, "dur": 8000,
     "args": {"unit": "blocks.0"}}]})";
  const ProcessResult result = run_fsdp({"trace", path_.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "rank 0\n"
      "  of 10.0 ms              time   share\n"
      "  compute              8.00 ms  80.0 %\n"
      "  optimizer                0 s   0.0 %\n"
      "  communication        2.00 ms  20.0 %\n"
      "  hidden by compute        0 s   0.0 %\n"
      "  exposed, gathers     2.00 ms  20.0 %\n"
      "  exposed, reductions      0 s   0.0 %\n"
      "  nothing runs             0 s   0.0 %\n"
      "\n"
      "  most exposed units  gathers  reductions\n"
      "  blocks.0            2.00 ms         0 s\n"
      "\n"
      "what to change\n"
      "  there is compute enough to hide the gathers: raise the prefetch depth "
      "by one and look again; every step holds one more unit in memory\n");
}

TEST_F(TraceFile, RefusesNoFileAndIllFormedFiles) {
  expect_refused({"trace"}, "no file: expected fsdp trace FILE");
  std::ofstream(path_) << R"([{"cat": "compute", "ph": "X"}])";
  const ProcessResult result = run_fsdp({"trace", path_.string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.err,
      "fsdp trace: trace '" + path_.string() +
          "': event 0 has no number 'ts' of at most 1e15\n");
}

TEST(SimulateCommand, SaysWhereTheTraceCannotBeWritten) {
  const ProcessResult result =
      run_fsdp(simulate_args({"--trace", "/nowhere/a.json"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.err,
      "fsdp simulate: --trace '/nowhere/a.json': cannot be written\n");
}

} // namespace
} // namespace fsdp::testing
