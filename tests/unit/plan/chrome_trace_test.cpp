#include "plan/chrome_trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "plan/simulate.h"
#include "support/throws.h"

namespace fsdp::plan {
namespace {

class ChromeTrace : public ::testing::Test {
 protected:
  ChromeTrace() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("fsdp_trace_") + test->name() + ".json");
  }
  ~ChromeTrace() override { std::filesystem::remove(path_); }

  void write(const std::string& text) { std::ofstream(path_) << text; }

  std::vector<Event> read_text(const std::string& text) {
    write(text);
    return read_trace(path_);
  }

  void expect_refused(const std::string& text, const std::string& why) {
    write(text);
    EXPECT_EQ(
        fsdp::testing::thrown_text<DataError>([&] { read_trace(path_); }),
        "trace '" + path_.string() + "': " + why);
  }

  std::filesystem::path path_;
};

std::vector<Event> some_events() {
  return {
      {Category::kUnshard, "all_gather", "root", 0, 0.001, 0},
      {Category::kCompute, "forward", "blocks.0", 0.001, 0.0025, 0},
      {Category::kReduce, "reduce_scatter", "blocks.\"0\"", 0.0025, 0.003, 1},
      {Category::kOptimizer, "step", "root", 0.003, 0.004, 1}};
}

TEST_F(ChromeTrace, GivesBackWhatWasWritten) {
  std::ostringstream out;
  write_trace(out, some_events());
  const std::vector<Event> read = read_text(out.str());
  const std::vector<Event> written = some_events();
  ASSERT_EQ(read.size(), written.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].category, written[i].category);
    EXPECT_EQ(read[i].name, written[i].name);
    EXPECT_EQ(read[i].unit, written[i].unit);
    EXPECT_EQ(read[i].rank, written[i].rank);
    EXPECT_NEAR(read[i].start, written[i].start, 1e-9);
    EXPECT_NEAR(read[i].end, written[i].end, 1e-9);
  }
}

TEST_F(ChromeTrace, IsWhatPerfettoReads) {
  std::ostringstream out;
  write_trace(out, some_events());
  const auto root = nlohmann::json::parse(out.str());
  const auto& events = root.at("traceEvents");
  // Two ranks with a name and two streams each, then the events.
  ASSERT_EQ(events.size(), 6U + 4U);
  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("args").at("name"), "rank 0");
  const auto& gather = events[6];
  EXPECT_EQ(gather.at("ph"), "X");
  EXPECT_EQ(gather.at("cat"), "unshard");
  EXPECT_EQ(gather.at("ts"), 0);
  EXPECT_EQ(gather.at("dur"), 1000); // microseconds
  EXPECT_EQ(gather.at("pid"), 0);
  EXPECT_EQ(gather.at("tid"), 1);
  EXPECT_EQ(events[7].at("tid"), 0);
}

TEST_F(ChromeTrace, PassesOverWhatOthersRecorded) {
  const auto events = read_text(
      R"([{"name": "kernel", "cat": "kernel", "ph": "X", "ts": 1, "dur": 2},
          {"name": "counter", "ph": "C", "ts": 1},
          {"name": "forward", "cat": "compute", "ph": "X", "ts": 4, "dur": 0,
           "args": {"unit": "root"}},
          {"name": "forward", "cat": "compute", "ph": "X", "ts": 3, "dur": 1,
           "pid": 5, "args": {"unit": "blocks.0", "operation": "f"}}])");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].unit, "blocks.0"); // by start
  EXPECT_EQ(events[0].name, "f");
  EXPECT_EQ(events[0].rank, 5);
  EXPECT_EQ(events[1].name, "forward");
  EXPECT_EQ(events[1].rank, 0);
}

TEST_F(ChromeTrace, RefusesFilesThatAreNoTrace) {
  expect_refused(
      "{\"a\": 1}",
      "is no trace: expected a list of events, or an object with traceEvents");
  expect_refused(
      "{\"traceEvents\": 3}",
      "is no trace: expected a list of events, or an object with traceEvents");
  const std::string none =
      "holds no event of the categories compute, unshard, reduce or optimizer; "
      "record it with fsdp train --profile or fsdp simulate --trace";
  expect_refused("[]", none);
  expect_refused("[{\"cat\": \"kernel\"}]", none);
  expect_refused("[7]", "event 0 is no object");
  write("[{");
  const std::string text =
      fsdp::testing::thrown_text<DataError>([&] { read_trace(path_); });
  EXPECT_EQ(text.find("trace '" + path_.string() + "': is no JSON: "), 0U);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(ChromeTrace, RefusesFilesThatCannotBeRead) {
  EXPECT_EQ(
      fsdp::testing::thrown_text<DataError>([] { read_trace("/nowhere/a"); }),
      "trace '/nowhere/a': cannot be read");
  EXPECT_EQ(
      fsdp::testing::thrown_text<DataError>([] { read_trace("/"); }),
      "trace '/': is a folder, expected a file");
}

TEST_F(ChromeTrace, NamesThePlaceOfAnIllFormedEvent) {
  const auto second = [](const std::string& fields) {
    return R"([{"cat": "other"}, {"cat": "reduce", )" + fields + "}]";
  };
  expect_refused(second(R"("name": "a")"), "event 1 has no text 'ph'");
  expect_refused(
      second(R"("ph": "B")"),
      "event 1 is of phase \"B\"; expected complete events (\"X\")");
  expect_refused(
      second(R"("ph": "X", "dur": 1)"),
      "event 1 has no number 'ts' of at most 1e15");
  expect_refused(
      second(R"("ph": "X", "ts": 1e300, "dur": 1)"),
      "event 1 has no number 'ts' of at most 1e15");
  expect_refused(
      second(R"("ph": "X", "ts": "0", "dur": 1)"),
      "event 1 has no number 'ts' of at most 1e15");
  expect_refused(
      second(R"("ph": "X", "ts": 0, "dur": -1)"), "event 1 has a negative dur");
  expect_refused(
      second(R"("ph": "X", "ts": 0, "dur": 1, "name": "a")"),
      "event 1 has no args with its unit");
  expect_refused(
      second(R"("ph": "X", "ts": 0, "dur": 1, "args": {}, "name": "a")"),
      "event 1 has no text 'unit'");
  expect_refused(
      second(
          R"("ph": "X", "ts": 0, "dur": 1, "args": {"unit": "a"}, "pid": -1)"),
      "event 1 has a pid that is no rank");
}

} // namespace
} // namespace fsdp::plan
