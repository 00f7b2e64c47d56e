#include "fsdp/process_group.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "comm/communicator.h"
#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::thrown_text;

std::int64_t sum_of(const ProcessGroup& group, std::int64_t value) {
  group.communicator().all_reduce(
      &value, 1, DType::kInt64, ReduceOp::kSum, "a sum");
  return value;
}

class RunRanks : public ::testing::TestWithParam<const char*> {
 protected:
  static InitOptions options() { return {.backend = GetParam()}; }
};

TEST_P(RunRanks, GivesEachThreadItsRankInOneWorld) {
  for (const int size : {1, 2, 3, 8}) {
    std::mutex mutex;
    std::set<int> ranks;
    run_ranks(
        size,
        [&](ProcessGroup world) {
          EXPECT_EQ(world.size(), size);
          EXPECT_EQ(world.communicator().backend(), GetParam());
          std::vector<int> all(static_cast<std::size_t>(size));
          std::iota(all.begin(), all.end(), 0);
          EXPECT_EQ(world.world_ranks(), all);
          EXPECT_EQ(sum_of(world, world.rank() + 1), size * (size + 1) / 2);
          const std::lock_guard lock(mutex);
          ranks.insert(world.rank());
        },
        options());
    EXPECT_EQ(ranks.size(), static_cast<std::size_t>(size));
  }
}

TEST_P(RunRanks, ThrowsWhatTheFailingRankThrewAndTellsTheOthers) {
  for (const int size : {2, 3, 8}) {
    std::mutex mutex;
    std::vector<std::string> told;
    const auto body = [&](ProcessGroup world) {
      world.barrier("the start");
      if (world.rank() == 1) {
        throw std::domain_error("no such token: 300");
      }
      try {
        world.barrier("the end");
      } catch (const PeerError& error) {
        const std::lock_guard lock(mutex);
        told.push_back(error.what());
        throw;
      }
    };
    EXPECT_EQ(
        thrown_text<std::domain_error>(
            [&] { run_ranks(size, body, options()); }),
        "no such token: 300");
    EXPECT_EQ(told.size(), static_cast<std::size_t>(size - 1));
    for (const std::string& text : told) {
      EXPECT_THAT(text, HasSubstr("] rank 1 failed: no such token: 300"));
    }
  }
}

TEST_P(RunRanks, AFailureReachesRanksThatWaitInASubGroup) {
  std::atomic<int> num_told{0};
  std::vector<std::optional<ProcessGroup>> halves(4); // outlive the failure
  const auto body = [&](ProcessGroup world) {
    const std::vector<int> members =
        world.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    auto& half = halves[static_cast<std::size_t>(world.rank())];
    half = world.split(members, "half");
    if (world.rank() == 0) {
      throw std::runtime_error("broken");
    }
    try {
      if (world.rank() == 1) {
        half->barrier("a step");
      } else {
        world.barrier("a step");
      }
    } catch (const PeerError&) {
      ++num_told;
      throw;
    }
  };
  EXPECT_EQ(
      thrown_text<std::runtime_error>([&] { run_ranks(4, body, options()); }),
      "broken");
  EXPECT_EQ(num_told, 3);
}

TEST_P(RunRanks, WhatIsNoStandardExceptionComesOutToo) {
  EXPECT_THROW(
      run_ranks(
          2,
          [](ProcessGroup world) {
            if (world.rank() == 0) {
              throw 42;
            }
            world.barrier("never");
          },
          options()),
      int);
}

TEST_P(RunRanks, SplitsIntoGroupsThatSumOnTheirOwn) {
  run_ranks(
      4,
      [](ProcessGroup world) {
        const int rank = world.rank();
        const ProcessGroup pair = world.split(
            rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3},
            rank % 2 == 0 ? "even" : "odd");
        EXPECT_EQ(pair.rank(), rank / 2);
        EXPECT_EQ(pair.size(), 2);
        EXPECT_EQ(
            pair.world_ranks(), (std::vector<int>{rank % 2, rank % 2 + 2}));
        EXPECT_EQ(sum_of(pair, rank), rank % 2 == 0 ? 2 : 4);
        const ProcessGroup single = pair.split({pair.rank()}, "alone");
        EXPECT_THAT(single.world_ranks(), ElementsAre(rank));
        EXPECT_EQ(sum_of(single, rank), rank);
        EXPECT_EQ(sum_of(world, rank), 6);
      },
      options());
}

TEST_P(RunRanks, OverlappingGroupsTakeTurnsWithoutFalseAlarm) {
  run_ranks(
      4,
      [](ProcessGroup world) {
        const int rank = world.rank();
        // {0, 1, 2} and {1, 2, 3} overlap; so do the splits that make them.
        const ProcessGroup low =
            rank < 3 ? world.split({0, 1, 2}, "low") : world.split({3}, "rest");
        const ProcessGroup high = rank > 0 ? world.split({1, 2, 3}, "high")
                                           : world.split({0}, "rest");
        for (int step = 0; step < 20; ++step) {
          if (rank < 3) {
            low.barrier("low step");
            EXPECT_EQ(sum_of(low, 1), 3);
          }
          if (rank > 0) {
            EXPECT_EQ(sum_of(high, rank), 6);
            high.barrier("high step");
          }
        }
        EXPECT_EQ(sum_of(world, 1), 4);
      },
      options());
}

TEST_P(RunRanks, SplitsThatDisagreeAreNamedOnEveryRank) {
  run_ranks(
      3,
      [](ProcessGroup world) {
        const std::vector<int> members =
            world.rank() == 1 ? std::vector<int>{1} : std::vector<int>{0, 1, 2};
        EXPECT_EQ(
            thrown_text<MismatchError>([&] { world.split(members, "group"); }),
            "[rank " + std::to_string(world.rank()) +
                "] split: ranks 0 and 1 named different members or names of "
                "the sub-group that holds both; give the same on every member");
        const std::string name = world.rank() == 2 ? "b" : "a";
        EXPECT_THAT(
            thrown_text<MismatchError>([&] {
              world.split({0, 1, 2}, name);
            }),
            HasSubstr("ranks 0 and 2 named different members or names"));
        EXPECT_EQ(sum_of(world, 1), 3);
      },
      options());
}

TEST_P(RunRanks, ALateRankIsNamedWithTheDeadline) {
  std::latch given_up(1);
  InitOptions short_wait = options();
  short_wait.timeout = std::chrono::milliseconds(400);
  run_ranks(
      2,
      [&](ProcessGroup world) {
        if (world.rank() == 1) {
          given_up.wait();
          return;
        }
        EXPECT_THAT(
            thrown_text<TimeoutError>([&] { world.barrier("the last step"); }),
            HasSubstr("[rank 0] timed out after 400 ms in barrier for 'the "
                      "last step': rank 1 had not come"));
        given_up.count_down();
      },
      short_wait);
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    RunRanks,
    ::testing::Values("inproc", "shm", "gloo"),
    [](const auto& tested) { return std::string(tested.param); });

TEST(Split, RefusesMembersThatCannotFormAGroup) {
  run_ranks(3, [](ProcessGroup world) {
    const std::string start =
        "[rank " + std::to_string(world.rank()) + "] split 'g': ";
    const std::string end =
        "; give ranks of this group in ascending order, this rank among them";
    EXPECT_EQ(
        thrown_text<UsageError>([&] {
          world.split({0, 3}, "g");
        }),
        start + "rank 3 is not in a group of 3" + end);
    EXPECT_EQ(
        thrown_text<UsageError>([&] {
          world.split({1, 0, 2}, "g");
        }),
        start + "rank 0 comes after rank 1" + end);
    EXPECT_EQ(
        thrown_text<UsageError>([&] {
          world.split({0, 1, 1, 2}, "g");
        }),
        start + "rank 1 comes after rank 1" + end);
    const int other = (world.rank() + 1) % 3;
    EXPECT_EQ(
        thrown_text<UsageError>([&] { world.split({other}, "g"); }),
        start + "rank " + std::to_string(world.rank()) + " is not a member" +
            end);
    EXPECT_EQ(sum_of(world, 1), 3);
  });
}

TEST(RunRanksOptions, RefusesWhatHasNoMeaningForThreads) {
  const auto body = [](ProcessGroup) {};
  EXPECT_EQ(
      thrown_text<UsageError>([&] { run_ranks(0, body); }),
      "run_ranks: size is 0; expected 1 or more");
  EXPECT_EQ(
      thrown_text<UsageError>(
          [&] { run_ranks(2, body, {.backend = "inproc", .rank = 0}); }),
      "run_ranks: rank, world_size and master have no meaning for threads; "
      "leave them unset");
  EXPECT_EQ(
      thrown_text<ConfigError>([&] { run_ranks(1, body, {.backend = "mpi"}); }),
      "[rank 0] unknown backend 'mpi'; the backends are auto, self, inproc, "
      "shm, gloo");
}

TEST(InitOptions, RefusesWhatNamesNoPlaceInAJob) {
  const auto refusal = [](const InitOptions& options) {
    return thrown_text<ConfigError>([&] { init_process_group(options); });
  };
  EXPECT_EQ(
      refusal({.rank = 1}),
      "InitOptions: rank, world_size and master go together; give all three "
      "or none");
  EXPECT_EQ(
      refusal({.rank = 0, .world_size = 0, .master = "127.0.0.1:29500"}),
      "InitOptions::world_size is 0; expected 1 or more");
  EXPECT_EQ(
      refusal({.rank = 4, .world_size = 4, .master = "127.0.0.1:29500"}),
      "InitOptions::rank is 4; expected 0 to 3 in a world of 4");
  for (const char* master :
       {"127.0.0.1", ":29500", "host:", "host:port", "host:0", "host:65536"}) {
    EXPECT_EQ(
        refusal({.rank = 1, .world_size = 4, .master = master}),
        "[rank 1] InitOptions::master is '" + std::string(master) +
            "'; expected address:port with a port from 1 to 65535");
  }
  EXPECT_EQ(
      refusal(
          {.timeout = std::chrono::milliseconds(0),
           .rank = 1,
           .world_size = 2,
           .master = "127.0.0.1:29500"}),
      "[rank 1] the timeout is 0 s; expected more than 0 s");
}

TEST(InitProcessGroup, IsAWorldOfOneWithoutALauncher) {
  const ProcessGroup world = init_process_group();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.communicator().backend(), "self");
  EXPECT_EQ(sum_of(world, 7), 7);
}

} // namespace
} // namespace fsdp
