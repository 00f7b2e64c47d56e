#include "plan/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNear = 1e-9;

Event compute(const char* unit, double start, double end, int rank = 0) {
  return {Category::kCompute, "forward", unit, start, end, rank};
}

Event unshard(const char* unit, double start, double end, int rank = 0) {
  return {Category::kUnshard, "all_gather", unit, start, end, rank};
}

Event reduce(const char* unit, double start, double end, int rank = 0) {
  return {Category::kReduce, "reduce_scatter", unit, start, end, rank};
}

Event optimizer(double start, double end, int rank = 0) {
  return {Category::kOptimizer, "step", "root", start, end, rank};
}

TEST(Timeline, OnlyCommunicationBesideNoComputeIsExposed) {
  const std::vector<Event> events{
      unshard("a", 0, 4),
      compute("a", 1, 2),
      optimizer(3, 5),
      reduce("a", 4, 7),
      compute("a", 6, 8)};
  EXPECT_THAT(exposed_seconds(events, 0), ElementsAre(2, 0, 0, 1, 0));
}

TEST(Timeline, CollectivesThatOverlapShareTheTime) {
  const std::vector<Event> events{unshard("a", 0, 4), reduce("b", 2, 4)};
  EXPECT_THAT(exposed_seconds(events, 0), ElementsAre(3, 1));
}

TEST(Timeline, RanksAreKeptApart) {
  const std::vector<Event> events{unshard("a", 0, 4, 0), compute("a", 0, 4, 1)};
  EXPECT_THAT(exposed_seconds(events, 0), ElementsAre(4, 0));
  EXPECT_THAT(exposed_seconds(events, 1), ElementsAre(0, 0));
}

TEST(Timeline, EqualsACountOfMoments) {
  // Whole seconds; a moment is looked at in the middle of each.
  std::mt19937 random(3);
  const auto pick = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<Event> events;
    for (int i = 0; i < 12; ++i) {
      const double start = pick(30);
      events.push_back(
          {static_cast<Category>(pick(4)),
           "x",
           "u" + std::to_string(pick(3)),
           start,
           start + pick(6),
           0});
    }
    double exposed = 0;
    double busy = 0;
    double idle = 0;
    const BusyTimes times = busy_times(events, 0);
    for (double at = 0.5; at < 40; ++at) {
      bool computes = false;
      bool communicates = false;
      for (const Event& event : events) {
        const bool runs = event.start < at && at < event.end;
        (is_communication(event.category) ? communicates : computes) |= runs;
      }
      exposed += communicates && !computes ? 1 : 0;
      busy += computes ? 1 : 0;
      const bool inside = times.start < at && at < times.end;
      idle += inside && !computes && !communicates ? 1 : 0;
    }
    double sum = 0;
    for (const double seconds : exposed_seconds(events, 0)) {
      sum += seconds;
    }
    ASSERT_NEAR(sum, exposed, kNear);
    ASSERT_NEAR(times.compute, busy, kNear);
    ASSERT_NEAR(times.idle, idle, kNear);
    double by_unit = 0;
    for (const UnitExposure& unit : exposure_by_unit(events, 0)) {
      by_unit += unit.seconds();
    }
    ASSERT_NEAR(by_unit, exposed, kNear);
  }
}

TEST(Diagnose, NamesTheUnitsThatWaitMost) {
  const Diagnosis diagnosis = diagnose(std::vector<Event>{
      unshard("root", 0, 1),
      compute("root", 1, 2),
      unshard("blocks.0", 2, 5),
      compute("blocks.0", 5, 20),
      reduce("blocks.0", 20, 22)});
  EXPECT_NEAR(diagnosis.exposed, 6, kNear);
  EXPECT_NEAR(diagnosis.exposed_unshard, 4, kNear);
  EXPECT_NEAR(diagnosis.exposed_reduce, 2, kNear);
  ASSERT_EQ(diagnosis.units.size(), 2U);
  EXPECT_EQ(diagnosis.units[0].unit, "blocks.0");
  EXPECT_NEAR(diagnosis.units[0].unshard, 3, kNear);
  EXPECT_NEAR(diagnosis.units[0].reduce, 2, kNear);
}

TEST(Diagnose, TakesTheRankThatWaitsMost) {
  const Diagnosis diagnosis = diagnose(std::vector<Event>{
      unshard("a", 0, 1, 0),
      compute("a", 1, 10, 0),
      unshard("a", 0, 3, 4),
      compute("a", 3, 12, 4)});
  EXPECT_EQ(diagnosis.rank, 4);
  EXPECT_EQ(diagnosis.num_ranks, 2);
  EXPECT_NEAR(diagnosis.times.seconds(), 12, kNear);
}

std::string first_advice(const std::vector<Event>& events) {
  return diagnose(events).advice.front();
}

TEST(Diagnose, AdvisesByWhatIsExposed) {
  EXPECT_EQ(
      first_advice({unshard("a", 0, 2), compute("a", 2, 10)}),
      "there is compute enough to hide the gathers: raise the prefetch depth "
      "by one and look again; every step holds one more unit in memory");
  EXPECT_EQ(
      first_advice({unshard("a", 0, 8), compute("a", 8, 12)}),
      "collectives take 2.0 times as long as the compute that could hide them: "
      "raise the batch of a rank, or accumulate without synchronising");
  EXPECT_EQ(
      first_advice({compute("a", 0, 10), reduce("a", 10, 13)}),
      "reductions of the last units have nothing left to hide behind: make the "
      "first blocks and the root smaller units, or reduce in bfloat16");
  EXPECT_EQ(
      first_advice({compute("a", 0, 2), reduce("a", 2, 9)}),
      "reductions wait for the link: reduce in bfloat16, raise the batch of a "
      "rank, or accumulate without synchronising");
  EXPECT_EQ(
      first_advice({unshard("a", 1, 5), compute("a", 0, 10)}),
      "nothing to gain from the schedule: compute hides 100 % of the "
      "communication");
  EXPECT_EQ(
      first_advice({compute("a", 0, 10)}), "there is no communication to hide");
}

TEST(Diagnose, SeesGapsAndALongOptimizer) {
  const auto advice = diagnose(std::vector<Event>{
                                   compute("a", 0, 10),
                                   unshard("a", 1, 2),
                                   compute("a", 14, 20),
                                   optimizer(20, 25)})
                          .advice;
  ASSERT_EQ(advice.size(), 3U);
  EXPECT_THAT(advice[1], HasSubstr("nothing runs for 16 % of the time"));
  EXPECT_THAT(advice[2], HasSubstr("the optimizer takes 20 % of the time"));
}

TEST(Diagnose, RefusesAnEmptyTimeline) {
  EXPECT_EQ(
      fsdp::testing::thrown_text<UsageError>(
          [] { diagnose(std::vector<Event>{}); }),
      "diagnose: the timeline has no events; pass at least one");
}

} // namespace
} // namespace fsdp::plan
