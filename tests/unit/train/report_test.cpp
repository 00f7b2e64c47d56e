#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "fsdp/error.h"
#include "support/ranks.h"
#include "train/console.h"
#include "train/json_log.h"
#include "train/step_report.h"

namespace fsdp {
namespace {

StepMetrics some_metrics() {
  return {
      .step = 12,
      .loss = 1.25,
      .grad_norm = 0.5,
      .tokens_per_s = 1000,
      .step_ms = 10,
      .wait_ms = 1,
      .reduce_ms = 2,
      .optim_ms = 3,
      .peak_tensor_bytes = 61'200'000,
      .progress = 0.5,
      .seconds_left = 82.5};
}

TEST(JsonLog, WritesOneObjectPerStep) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "fsdp_json_log_test").string();
  JsonLog log(path);
  log.on_step(some_metrics());
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(
      line,
      R"({"step":12,"loss":1.25,"grad_norm":0.5,"tokens_per_s":1000.0,)"
      R"("step_ms":10.0,"wait_ms":1.0,"reduce_ms":2.0,"optim_ms":3.0,)"
      R"("peak_tensor_bytes":61200000})");
  std::filesystem::remove(path);
}

TEST(JsonLog, NumbersThatAreNotFiniteAreNull) {
  StepMetrics metrics = some_metrics();
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST(JsonLog, AFileThatCannotBeWrittenIsNamed) {
  try {
    const JsonLog log("/no/such/folder/log");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "--log-json '/no/such/folder/log': cannot be written: No such file or "
        "directory");
  }
}

TEST(Console, ShowsAStepInOneLine) {
  EXPECT_EQ(
      describe(some_metrics()),
      "step 12  loss 1.2500  norm 0.500  1000 tok/s  peak 61.2 MB  1:23 left");
  StepMetrics skipped = some_metrics();
  skipped.skipped = true;
  EXPECT_THAT(
      describe(skipped), ::testing::EndsWith("left  skipped: not finite"));
}

TEST(Console, LiveLineIsRewrittenAndKeptBeforeOtherLines) {
  std::ostringstream out;
  Console console(out, Console::Style::kLiveLine);
  console.on_step(some_metrics());
  EXPECT_EQ(out.str(), "\r" + describe(some_metrics()) + "\x1b[K");
  console.on_validation(12, 1.5);
  EXPECT_EQ(
      out.str(),
      "\r" + describe(some_metrics()) +
          "\x1b[K\nstep 12  validation loss 1.5000\n");
}

TEST(Console, LinesComeAtIntervalsAndAtTheEnd) {
  std::ostringstream out;
  Console console(out, Console::Style::kLines);
  StepMetrics metrics = some_metrics();
  console.on_step(metrics);
  const std::string first = out.str();
  metrics.step = 13;
  console.on_step(metrics);
  EXPECT_EQ(out.str(), first) << "within the interval";
  metrics.progress = 1;
  console.on_step(metrics);
  EXPECT_EQ(out.str(), first + describe(metrics) + "\n");
  EXPECT_THAT(out.str(), ::testing::Not(::testing::HasSubstr("\r")));
}

TEST(Console, SummaryComparesWithTheTrigramTable) {
  TrainSummary summary{
      .num_steps = 10,
      .num_skipped = 1,
      .num_tokens = 2000,
      .seconds = 4,
      .wait_seconds = 1,
      .reduce_seconds = 0.5,
      .optim_seconds = 0.5,
      .validation_seconds = 3,
      .sample_seconds = 1.5,
      .loss = 1.5,
      .memory = std::vector<MemoryReport>(2),
      .validation_loss = 1.25,
      .bigram_loss = 2.5,
      .trigram_loss = 1.75};
  summary.memory[0].total.peak = 1'000'000;
  summary.memory[1].total.peak = 2'500'000;
  for (std::size_t i = 0; i < kNumMemoryComponents; ++i) {
    summary.memory[0].components[i].at_total_peak =
        static_cast<std::int64_t>(100'000 * (i + 1));
  }
  EXPECT_EQ(
      describe(summary),
      "trained 10 steps, 2000 tokens in 4.0 s: 500 tok/s, last loss 1.5000\n"
      "skipped 1 steps that were not finite\n"
      "peak tensor bytes by rank: 1.0 MB 2.5 MB\n"
      "at rank 0's peak, in MB: parameters 0.1, gradients 0.2, optimizer state "
      "0.3, gathered 0.4, reduction 0.5, activations 0.6\n"
      "time of rank 0:\n"
      "  compute        2.00 s   50.0 %\n"
      "  waiting        1.00 s   25.0 %\n"
      "  reduction      0.50 s   12.5 %\n"
      "  optimizer      0.50 s   12.5 %\n"
      "beside it: validation 3.0 s, sample 1.5 s\n"
      "validation loss 1.2500 nats per byte, below a trigram table's 1.7500 "
      "(bigram 2.5000)\n");
  summary.validation_loss = 1.75;
  EXPECT_THAT(describe(summary), ::testing::HasSubstr("NOT below a trigram"));
}

TEST(Console, PrintableEscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\n\tb\x1b[2J\xff"), "a\n\tb\\x1b[2J\\xff");
}

TEST(StepReport, IsTheSameOnAllRanksAndNamesThoseThatAreNotFinite) {
  for (const int size : {1, 2, 3, 4, 8}) {
    testing::with_ranks(size, [size](const ProcessGroup& world) {
      const int rank = world.rank();
      const bool bad = rank % 2 == 1;
      const StepReport report = exchange(
          world,
          {.loss_sum = bad ? std::numeric_limits<double>::infinity() : 4.0,
           .num_tokens = rank + 1.0,
           .peak_tensor_bytes = 100.0 * rank},
          10.0 + rank);
      EXPECT_EQ(report.seconds, 10);
      EXPECT_EQ(report.num_tokens(), size * (size + 1) / 2);
      EXPECT_EQ(report.peak_tensor_bytes(), 100 * (size - 1));
      std::vector<int> expected;
      for (int r = 1; r < size; r += 2) {
        expected.push_back(r);
      }
      EXPECT_EQ(report.nonfinite_ranks(), expected);
      if (size == 1) {
        EXPECT_EQ(report.loss(), 4);
      }
    });
  }
}

} // namespace
} // namespace fsdp
