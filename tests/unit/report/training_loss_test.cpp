#include "report/training_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp::report {
namespace {

std::string log_of(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "training_loss_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(TrainingLoss, IsTheLogs) {
  const std::string log = log_of(
      "a.jsonl",
      "{\"step\":1,\"loss\":8.0,\"grad_norm\":1}\n{\"step\":2,\"loss\":null}\n"
      "\n{\"step\":3,\"loss\":2}\n");
  const Chart chart = training_loss(log);
  ASSERT_EQ(chart.series[0].points.size(), 3U);
  EXPECT_EQ(chart.series[0].points[0].y, 8);
  EXPECT_TRUE(std::isnan(chart.series[0].points[1].y));
  EXPECT_EQ(chart.series[0].points[2].x, 3);
  EXPECT_EQ(
      chart.text,
      "From training_loss_a.jsonl: 8.000 at step 1, 2.000 at step 3, "
      "75.0 % less.");
}

TEST(TrainingLoss, KeepsFirstAndLastOfALongRun) {
  std::string text;
  for (int step = 0; step < 10001; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n";
  }
  const Chart chart = training_loss(log_of("long.jsonl", text));
  EXPECT_LE(chart.series[0].points.size(), kMostLossPoints + 1);
  EXPECT_GT(chart.series[0].points.size(), kMostLossPoints / 2);
  EXPECT_EQ(chart.series[0].points.front().x, 0);
  EXPECT_EQ(chart.series[0].points.back().x, 10000);
}

TEST(TrainingLoss, RefusesWhatIsNoLog) {
  const auto refusal = [](const std::string& path) {
    return testing::thrown_text<DataError>([&] { training_loss(path); });
  };
  EXPECT_EQ(refusal("none.jsonl"), "loss 'none.jsonl': cannot be read");
  EXPECT_EQ(
      refusal(::testing::TempDir()),
      "loss '" + ::testing::TempDir() + "': cannot be read");
  const std::string empty = log_of("empty.jsonl", "\n");
  EXPECT_EQ(
      refusal(empty),
      "loss '" + empty +
          "': holds no step; expected the lines of fsdp train --log-json");
  for (const std::string line :
       {"[1]",
        "{\"step\":1}",
        "{\"step\":1.5,\"loss\":1}",
        "x",
        "{\"step\":1,\"loss\":\"1\"}"}) {
    const std::string log =
        log_of("bad.jsonl", "{\"step\":1,\"loss\":1}\n" + line + "\n");
    EXPECT_EQ(
        refusal(log),
        "loss '" + log +
            "': line 2 is no JSON object with a step and a loss, as fsdp train "
            "--log-json writes it");
  }
}

} // namespace
} // namespace fsdp::report
