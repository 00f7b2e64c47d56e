// The events that a rank's phases become.

#include "train/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp {
namespace {

using plan::Category;
using std::chrono::milliseconds;

class Profile : public ::testing::Test {
 protected:
  StepProfile::Clock::time_point at(int ms) const {
    return start_ + milliseconds(ms);
  }
  void begin(UnitPhase phase, const char* unit, int ms) {
    profile_.on_phase(phase, true, unit, at(ms));
  }
  void end(UnitPhase phase, const char* unit, int ms) {
    profile_.on_phase(phase, false, unit, at(ms));
  }
  void expect_event(
      std::size_t index,
      Category category,
      const std::string& name,
      const std::string& unit,
      double start_ms,
      double end_ms) {
    const auto events = profile_.events();
    ASSERT_LT(index, events.size());
    EXPECT_EQ(events[index].category, category) << index;
    EXPECT_EQ(events[index].name, name) << index;
    EXPECT_EQ(events[index].unit, unit) << index;
    EXPECT_NEAR(events[index].start * 1e3, start_ms, 1e-6) << index;
    EXPECT_NEAR(events[index].end * 1e3, end_ms, 1e-6) << index;
    EXPECT_EQ(events[index].rank, 5) << index;
  }

  StepProfile profile_{5};
  const StepProfile::Clock::time_point start_ = StepProfile::Clock::now();
};

TEST_F(Profile, TimeBelongsToTheInnermostUnit) {
  profile_.begin_step(3, at(0));
  begin(UnitPhase::kForward, "", 1);
  begin(UnitPhase::kForward, "layers.0", 3);
  end(UnitPhase::kForward, "layers.0", 7);
  end(UnitPhase::kForward, "", 8);
  profile_.end_step(at(9), at(12));
  ASSERT_EQ(profile_.events().size(), 4U);
  expect_event(0, Category::kCompute, "forward", "root", 1, 3);
  expect_event(1, Category::kCompute, "forward", "layers.0", 3, 7);
  expect_event(2, Category::kCompute, "forward", "root", 7, 8);
  expect_event(3, Category::kOptimizer, "optimizer", "root", 9, 12);
}

TEST_F(Profile, NothingIsComputedWhileTheThreadReducesOrWaits) {
  profile_.begin_step(3, at(0));
  begin(UnitPhase::kUnshard, "b", 0);
  begin(UnitPhase::kBackward, "a", 1);
  begin(UnitPhase::kWaitUnshard, "b", 2);
  end(UnitPhase::kUnshard, "b", 4);
  end(UnitPhase::kWaitUnshard, "b", 4);
  begin(UnitPhase::kReduce, "b", 5);
  end(UnitPhase::kReduce, "b", 6);
  end(UnitPhase::kBackward, "a", 7);
  ASSERT_EQ(profile_.events().size(), 5U);
  expect_event(0, Category::kUnshard, "all_gather", "b", 0, 4);
  expect_event(1, Category::kCompute, "backward", "a", 1, 2);
  expect_event(2, Category::kCompute, "backward", "a", 4, 5);
  expect_event(3, Category::kReduce, "reduce_scatter", "b", 5, 6);
  expect_event(4, Category::kCompute, "backward", "a", 6, 7);
}

TEST_F(Profile, KeepsTheStepsFromTheThirdToTheTwelfth) {
  for (int step = 1; step <= 20; ++step) {
    profile_.begin_step(step, at(10 * step));
    begin(UnitPhase::kPublish, "", 10 * step);
    end(UnitPhase::kPublish, "", 10 * step + 1);
    profile_.end_step(at(10 * step + 2), at(10 * step + 3));
  }
  const auto events = profile_.events();
  ASSERT_EQ(events.size(), 20U);
  expect_event(0, Category::kUnshard, "publish", "root", 0, 1);
  expect_event(19, Category::kOptimizer, "optimizer", "root", 92, 93);
}

TEST_F(Profile, AStepThatFailedLeavesNothingOpen) {
  profile_.begin_step(3, at(0));
  begin(UnitPhase::kForward, "", 1);
  begin(UnitPhase::kReduce, "", 2);
  profile_.begin_step(4, at(10));
  begin(UnitPhase::kForward, "", 11);
  end(UnitPhase::kForward, "", 12);
  ASSERT_EQ(profile_.events().size(), 2U);
  expect_event(1, Category::kCompute, "forward", "root", 11, 12);
}

} // namespace
} // namespace fsdp
