#include "train/schedule.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TrainOptions options_of(std::int64_t steps, double minutes) {
  TrainOptions options;
  options.steps = steps;
  options.minutes = minutes;
  options.lr = 1;
  options.min_lr = 0.1;
  options.warmup = 10;
  return options;
}

TEST(Schedule, ProgressIsThatOfTheLimitReachedFirst) {
  EXPECT_DOUBLE_EQ(progress(options_of(100, 0), 25, 1e9), 0.25);
  EXPECT_DOUBLE_EQ(progress(options_of(0, 2), 1000, 30), 0.25);
  EXPECT_DOUBLE_EQ(progress(options_of(100, 2), 25, 60), 0.5);
  EXPECT_DOUBLE_EQ(progress(options_of(100, 2), 75, 60), 0.75);
  EXPECT_DOUBLE_EQ(progress(options_of(100, 2), 75, 600), 1);
}

TEST(Schedule, LearningRateRisesThenFallsAsACosine) {
  const TrainOptions options = options_of(110, 0);
  const auto rate = [&](std::int64_t done) {
    return learning_rate(
        options, done, progress(options, done, 0), progress(options, 10, 0));
  };
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(4), 0.5);
  EXPECT_DOUBLE_EQ(rate(9), 1);
  EXPECT_DOUBLE_EQ(rate(10), 1);
  EXPECT_NEAR(rate(60), 0.55, 1e-12);
  EXPECT_NEAR(rate(35), 0.1 + 0.9 * (1 + 0.70710678118) / 2, 1e-9);
  EXPECT_NEAR(rate(110), 0.1, 1e-12);
}

TEST(Schedule, WarmupLongerThanTheRunOnlyRises) {
  TrainOptions options = options_of(5, 0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 4, 0.8, 0.8), 0.5);
}

} // namespace
} // namespace fsdp
