// The simulation against a second one, which knows no units: it only has
// operations, what they wait for, and one queue for each stream.

#include "plan/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace fsdp::plan {
namespace {

constexpr double kNear = 1e-9;

Schedule even_schedule(
    int blocks, double unshard, double forward, double reduce, int depth = 1) {
  Schedule schedule;
  schedule.root.name = "root";
  schedule.prefetch_depth = depth;
  for (int i = 0; i < blocks; ++i) {
    ScheduledUnit unit;
    unit.name = "blocks." + std::to_string(i);
    unit.compute = {forward, 0, 2 * forward};
    unit.unshard.seconds = unshard;
    unit.reduce.seconds = reduce;
    schedule.blocks.push_back(unit);
  }
  return schedule;
}

/// Times in whole and half seconds, zeros among them.
class RandomSchedules {
 public:
  explicit RandomSchedules(unsigned seed) : random_(seed) {}

  Schedule next() {
    Schedule schedule;
    schedule.root = unit("root");
    schedule.embedding = times(false);
    schedule.head = times(false);
    const bool checkpointed = pick(2) == 0;
    const int blocks = pick(9);
    for (int i = 0; i < blocks; ++i) {
      ScheduledUnit block = unit("blocks." + std::to_string(i));
      block.compute = times(checkpointed);
      schedule.blocks.push_back(block);
    }
    schedule.optimizer = pick(4);
    schedule.reshard_after_forward = pick(2) == 0;
    schedule.prefetch_depth = pick(5);
    schedule.passes = 1 + pick(4);
    schedule.sync_every_pass = pick(2) == 0;
    return schedule;
  }

  int pick(int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random_);
  }

 private:
  UnitTime times(bool recompute) {
    return {0.5 * pick(9), recompute ? 0.5 * pick(9) : 0, 0.5 * pick(17)};
  }

  ScheduledUnit unit(const std::string& name) {
    ScheduledUnit unit;
    unit.name = name;
    unit.unshard.seconds = 0.5 * pick(7);
    unit.reduce.seconds = 0.5 * pick(7);
    unit.replicate.seconds = pick(3) == 0 ? 0.5 * pick(5) : 0;
    return unit;
  }

  std::mt19937 random_;
};

/// A list of operations in the order of their issue; each begins when its
/// stream is free and what it waits for has ended.
class Operations {
 public:
  std::size_t add(
      bool on_link, double seconds, std::vector<std::size_t> waits_for) {
    // What takes no time is not issued, so that it waits for no queue.
    const bool is_issued = !on_link || seconds > 0;
    double& free = on_link ? link_free_ : compute_free_;
    double start = is_issued ? free : 0;
    for (const std::size_t other : waits_for) {
      start = std::max(start, ends_.at(other));
    }
    ends_.push_back(start + seconds);
    if (is_issued) {
      free = ends_.back();
    }
    return ends_.size() - 1;
  }

  double end() const { return std::max(link_free_, compute_free_); }

 private:
  std::vector<double> ends_;
  double link_free_ = 0;
  double compute_free_ = 0;
};

/// Seconds of one pass by its operations alone.
Operations operations_of(const Schedule& s, bool reduces) {
  Operations ops;
  const int count = static_cast<int>(s.blocks.size());
  const int depth = static_cast<int>(s.prefetch_depth);
  const std::size_t begin = ops.add(false, 0, {});
  const std::size_t root = ops.add(true, s.root.unshard.seconds, {begin});

  std::map<int, std::size_t> gathers;
  std::map<int, std::size_t> computes;
  // Turn 0 is the embedding, turn i + 1 block i, the last one the head.
  const auto gather_forward = [&](int turn, std::size_t after) {
    if (turn >= 1 && turn <= count) {
      gathers[turn] =
          ops.add(true, s.blocks[turn - 1].unshard.seconds, {after});
    }
  };
  for (int turn = 0; turn <= depth; ++turn) {
    gather_forward(turn, begin);
  }
  for (int turn = 0; turn <= count + 1; ++turn) {
    const double seconds = turn == 0       ? s.embedding.forward
                           : turn <= count ? s.blocks[turn - 1].compute.forward
                                           : s.head.forward;
    const std::size_t needs = gathers.count(turn) ? gathers[turn] : root;
    computes[turn] = ops.add(false, seconds, {needs});
    gather_forward(turn + 1 + depth, computes[turn]);
  }

  // The same backwards: turn 0 is the head, turn i + 1 the i-th block from the
  // end, the last one the embedding.
  const std::size_t turned = computes[count + 1];
  gathers.clear();
  const auto gather_backward = [&](int turn, std::size_t after) {
    if (turn >= 1 && turn <= count && s.reshard_after_forward) {
      gathers[turn] =
          ops.add(true, s.blocks[count - turn].unshard.seconds, {after});
    }
  };
  for (int turn = 0; turn <= depth; ++turn) {
    gather_backward(turn, turned);
  }
  for (int turn = 0; turn <= count + 1; ++turn) {
    const ScheduledUnit& unit =
        turn >= 1 && turn <= count ? s.blocks[count - turn] : s.root;
    const UnitTime& time = turn == 0      ? s.head
                           : turn > count ? s.embedding
                                          : unit.compute;
    const std::size_t needs = gathers.count(turn) ? gathers[turn] : turned;
    const std::size_t done =
        ops.add(false, time.recompute + time.backward, {needs});
    if (reduces && turn > 0) {
      ops.add(true, unit.reduce.seconds + unit.replicate.seconds, {done});
    }
    gather_backward(turn + 1 + depth, done);
  }
  return ops;
}

double reference_seconds(const Schedule& s) {
  const double with = operations_of(s, true).end();
  const double without = operations_of(s, false).end();
  const auto passes = static_cast<double>(s.passes);
  return s.optimizer +
         (s.sync_every_pass ? passes * with : (passes - 1) * without + with);
}

TEST(Simulate, EqualsASecondSimulationOnRandomSchedules) {
  RandomSchedules schedules(7);
  for (int i = 0; i < 3000; ++i) {
    const Schedule schedule = schedules.next();
    SCOPED_TRACE("schedule " + std::to_string(i));
    ASSERT_NEAR(simulate(schedule).seconds, reference_seconds(schedule), kNear);
  }
}

TEST(Simulate, HidesGathersBehindComputeByHand) {
  // Gathers of 1, computes of 2: all but the first gather of each direction are
  // hidden. Forward 1 + 4 * 2, backward 1 + 4 * 4, the last reduction 3.
  const SimulatedStep step = simulate(even_schedule(4, 1, 2, 3));
  EXPECT_NEAR(step.seconds, 9 + 17 + 3, kNear);
  EXPECT_NEAR(step.compute, 24, kNear);
  EXPECT_NEAR(step.communication, 8 * 1 + 4 * 3, kNear);
  EXPECT_NEAR(step.exposed, 5, kNear);
}

TEST(Simulate, WithoutPrefetchEveryGatherIsExposed) {
  const SimulatedStep step = simulate(even_schedule(4, 1, 2, 0, 0));
  EXPECT_NEAR(step.seconds, 4 * 3 + 4 * 5, kNear);
  EXPECT_NEAR(step.exposed, 8, kNear);
}

TEST(Simulate, TheSecondGatherAheadHidesUnevenBlocks) {
  // A large block behind two small ones: one unit ahead is not enough.
  Schedule schedule = even_schedule(3, 1, 2, 0, 1);
  schedule.blocks[2].unshard.seconds = 4;
  schedule.reshard_after_forward = false;
  // 1, 2 computed at 3 and 5; the gather of block 2 begins when block 0 is over
  // (its turn 0 is the empty embedding).
  const double shallow = simulate(schedule).seconds;
  schedule.prefetch_depth = 2;
  const double deep = simulate(schedule).seconds;
  EXPECT_NEAR(shallow, 3 + 4 + 2 + 12, kNear);
  EXPECT_NEAR(deep, 1 + 1 + 4 + 2 + 12, kNear);
}

TEST(Simulate, ReplicasAreReducedAfterTheShards) {
  Schedule schedule = even_schedule(1, 0, 1, 2);
  schedule.blocks[0].replicate.seconds = 5;
  const SimulatedStep step = simulate(schedule);
  EXPECT_NEAR(step.seconds, 3 + 2 + 5, kNear);
  ASSERT_EQ(step.events.size(), 4U);
  EXPECT_EQ(step.events[2].name, "reduce_scatter");
  EXPECT_EQ(step.events[3].name, "all_reduce");
  EXPECT_NEAR(step.events[3].start, 5, kNear);
}

TEST(Simulate, OnlyTheLastPassReducesWithoutSync) {
  Schedule schedule = even_schedule(1, 0, 1, 2);
  schedule.passes = 4;
  EXPECT_NEAR(simulate(schedule).seconds, 4 * 5, kNear);
  schedule.sync_every_pass = false;
  EXPECT_NEAR(simulate(schedule).seconds, 4 * 3 + 2, kNear);
}

TEST(Simulate, ContentionSlowsComputeWhileACollectiveRuns) {
  // Backward 4 of block 1 beside the gather of block 0 (2): half the rate for 2
  // seconds, 1 second lost.
  Schedule schedule = even_schedule(2, 2, 2, 0);
  const double free = simulate(schedule).seconds;
  for (ScheduledUnit& unit : schedule.blocks) {
    unit.unshard.contention = 0.5;
  }
  const SimulatedStep step = simulate(schedule);
  EXPECT_NEAR(step.contention, 2, kNear); // as much in the forward
  EXPECT_GT(step.seconds, free);
  EXPECT_NEAR(step.compute, 12, kNear);
}

TEST(Simulate, StaysBetweenTheLongerStreamAndTheirSum) {
  RandomSchedules schedules(11);
  for (int i = 0; i < 3000; ++i) {
    Schedule schedule = schedules.next();
    const auto contend = [&](ScheduledUnit& unit) {
      unit.unshard.contention = 0.1 * schedules.pick(10);
      unit.reduce.contention = 0.1 * schedules.pick(10);
      unit.replicate.contention = 0.1 * schedules.pick(10);
    };
    contend(schedule.root);
    std::ranges::for_each(schedule.blocks, contend);
    const SimulatedStep step = simulate(schedule);
    SCOPED_TRACE("schedule " + std::to_string(i));
    ASSERT_GE(step.seconds, std::max(step.compute, step.communication) - kNear);
    ASSERT_LE(step.seconds, step.compute + step.communication + kNear);
    ASSERT_NEAR(
        step.seconds, step.compute + step.contention + step.exposed, kNear);
  }
}

TEST(Simulate, DepthNeverHurts) {
  RandomSchedules schedules(13);
  for (int i = 0; i < 2000; ++i) {
    Schedule schedule = schedules.next();
    double before = std::numeric_limits<double>::infinity();
    for (int depth = 0; depth < 6; ++depth) {
      schedule.prefetch_depth = depth;
      const double seconds = simulate(schedule).seconds;
      SCOPED_TRACE("schedule " + std::to_string(i));
      ASSERT_LE(seconds, before + kNear);
      before = seconds;
    }
  }
}

TEST(Simulate, ASlowerLinkNeverSpeedsUp) {
  RandomSchedules schedules(17);
  for (int i = 0; i < 2000; ++i) {
    const Schedule fast = schedules.next();
    Schedule slow = fast;
    const auto stretch = [](ScheduledUnit& unit) {
      unit.unshard.seconds *= 1.3;
      unit.reduce.seconds *= 1.3;
      unit.replicate.seconds *= 1.3;
    };
    stretch(slow.root);
    std::ranges::for_each(slow.blocks, stretch);
    SCOPED_TRACE("schedule " + std::to_string(i));
    ASSERT_GE(simulate(slow).seconds, simulate(fast).seconds - kNear);
  }
}

TEST(Simulate, HoldsAtMostDepthAndOneUnits) {
  RandomSchedules schedules(19);
  for (int i = 0; i < 1000; ++i) {
    Schedule schedule = schedules.next();
    schedule.passes = 1;
    schedule.reshard_after_forward = true;
    const SimulatedStep step = simulate(schedule);
    std::map<std::string, double> gathered; // unit: since when
    std::vector<std::pair<double, int>> changes;
    std::vector<Event> events = step.events;
    for (const Event& event : events) {
      if (event.unit == "root") {
        continue;
      }
      if (event.category == Category::kUnshard) {
        changes.emplace_back(event.start, 1);
      } else if (event.name == "forward" || event.name == "backward") {
        changes.emplace_back(event.end, -1);
      }
    }
    // A unit that computes nothing, or gathers nothing, has no such pair.
    const auto is_whole = [](const ScheduledUnit& unit) {
      return unit.unshard.seconds > 0 && unit.compute.forward > 0 &&
             unit.compute.backward > 0;
    };
    if (!std::ranges::all_of(schedule.blocks, is_whole)) {
      continue;
    }
    std::ranges::sort(changes); // frees before takes at one time
    std::int64_t held = 0;
    for (const auto& [at, change] : changes) {
      held += change;
      ASSERT_LE(held, schedule.prefetch_depth + 1) << "schedule " << i;
    }
    EXPECT_EQ(held, 0);
  }
}

TEST(Simulate, EventsAddUpToTheTotals) {
  RandomSchedules schedules(23);
  for (int i = 0; i < 500; ++i) {
    const Schedule schedule = schedules.next();
    const SimulatedStep step = simulate(schedule);
    ASSERT_EQ(step.passes_left_out, 0);
    const BusyTimes busy = busy_times(step.events, 0);
    ASSERT_NEAR(busy.compute, step.compute, kNear);
    ASSERT_NEAR(busy.optimizer, step.optimizer, kNear);
    ASSERT_NEAR(busy.communication, step.communication, kNear);
    ASSERT_NEAR(busy.idle, 0, kNear);
    double exposed = 0;
    for (const UnitExposure& unit : step.units) {
      exposed += unit.seconds();
    }
    ASSERT_NEAR(exposed, step.exposed, kNear);
    if (!step.events.empty()) {
      ASSERT_NEAR(busy.seconds(), step.seconds, kNear);
    }
  }
}

TEST(Simulate, TracesTheLastPassesOfManyAndCountsAll) {
  Schedule schedule = even_schedule(2, 1, 2, 1);
  schedule.passes = 1'000'000'000;
  const SimulatedStep step = simulate(schedule);
  const double one = simulate(even_schedule(2, 1, 2, 1)).seconds;
  EXPECT_NEAR(step.seconds / 1e9, one, kNear);
  EXPECT_EQ(step.passes_left_out, schedule.passes - kTracedPasses);
  EXPECT_NEAR(step.events.back().end, one * kTracedPasses, kNear);
  schedule.sync_every_pass = false;
  const SimulatedStep unsynced = simulate(schedule);
  EXPECT_EQ(unsynced.passes_left_out, schedule.passes - kTracedPasses);
  EXPECT_EQ(
      std::ranges::count(unsynced.events, Category::kReduce, &Event::category),
      2);
}

TEST(Simulate, GivesTheSameAgain) {
  RandomSchedules schedules(29);
  for (int i = 0; i < 100; ++i) {
    const Schedule schedule = schedules.next();
    const SimulatedStep first = simulate(schedule);
    const SimulatedStep second = simulate(schedule);
    ASSERT_EQ(first.seconds, second.seconds);
    ASSERT_EQ(first.events.size(), second.events.size());
    for (std::size_t e = 0; e < first.events.size(); ++e) {
      ASSERT_EQ(first.events[e].start, second.events[e].start);
      ASSERT_EQ(first.events[e].unit, second.events[e].unit);
    }
    ASSERT_EQ(simulate(schedule, false).seconds, first.seconds);
  }
}

} // namespace
} // namespace fsdp::plan
