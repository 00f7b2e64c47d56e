// What only Gloo has among the backends: calls that are under way while their
// caller does something else.

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fsdp/error.h"
#include "fsdp/process_group.h"
#include "support/throws.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::thrown_text;

void run_gloo(
    int size,
    const std::function<void(ProcessGroup)>& body,
    std::chrono::milliseconds timeout = 30s) {
  run_ranks(size, body, {.backend = "gloo", .timeout = timeout});
}

std::string prefix(const ProcessGroup& group) {
  return "[rank " + std::to_string(group.rank()) + "] ";
}

void expect_usable(const ProcessGroup& group) {
  std::int64_t sum = group.rank() + 1;
  group.communicator().all_reduce(
      &sum, 1, DType::kInt64, ReduceOp::kSum, "still usable");
  EXPECT_EQ(sum, group.size() * (group.size() + 1) / 2);
}

/// An all_gather of `length` floats a rank, with its buffers.
struct Gather {
  Gather(const ProcessGroup& group, std::size_t length, float value)
      : input(length, value + static_cast<float>(group.rank())),
        output(length * static_cast<std::size_t>(group.size()), -1.0f) {
    const std::vector<std::int64_t> counts(
        static_cast<std::size_t>(group.size()),
        static_cast<std::int64_t>(length));
    work = group.communicator().all_gather(
        input.data(), output.data(), counts, DType::kFloat32, "weights");
  }
  Gather(Gather&&) = default;

  void expect_result(float value) const {
    for (std::size_t i = 0; i < output.size(); ++i) {
      ASSERT_EQ(output[i], value + static_cast<float>(i / input.size()));
    }
  }

  std::vector<float> input;
  std::vector<float> output;
  std::shared_ptr<Work> work; ///< goes first
};

TEST(GlooWork, IsIssuedWithoutTheOthers) {
  std::latch issued(1);
  run_gloo(2, [&](ProcessGroup world) {
    std::optional<Gather> gather;
    if (world.rank() == 0) {
      gather.emplace(world, 1000, 5.0f);
      issued.count_down(); // would never be reached if the call waited
    } else {
      issued.wait();
      gather.emplace(world, 1000, 5.0f);
    }
    gather->work->wait();
    gather->work->wait();
    gather->expect_result(5.0f);
  });
}

TEST(GlooWork, RunsInTheOrderIssuedWhateverTheOrderOfWaits) {
  run_gloo(3, [](ProcessGroup world) {
    std::vector<Gather> gathers;
    for (int i = 0; i < 8; ++i) {
      gathers.emplace_back(world, 20'000, static_cast<float>(10 * i));
    }
    expect_usable(world);
    for (int i = 7; i >= 0; --i) {
      const auto& gather = gathers[static_cast<std::size_t>(i)];
      gather.work->wait();
      gather.expect_result(static_cast<float>(10 * i));
    }
  });
}

TEST(GlooWork, MayBeDroppedWithItsBuffers) {
  for (int round = 0; round < 10; ++round) {
    run_gloo(3, [&](ProcessGroup world) {
      for (int i = 0; i < 5; ++i) {
        Gather gather(world, 100'000, static_cast<float>(i));
        if (world.rank() == 1) {
          continue; // drops it
        }
        gather.work->wait();
        gather.expect_result(static_cast<float>(i));
      }
      expect_usable(world);
    });
  }
}

TEST(GlooWork, OutlivesItsGroup) {
  std::vector<std::optional<Gather>> gathers(2);
  std::latch left(1);
  run_gloo(2, [&](ProcessGroup world) {
    if (world.rank() == 0) {
      gathers[0].emplace(world, 1000, 5.0f);
      world = ProcessGroup(nullptr);
      left.count_down();
    } else {
      left.wait();
    }
  });
  EXPECT_EQ(
      thrown_text<CommError>([&] { gathers[0]->work->wait(); }),
      "[rank 0] group 'world' was destroyed before the call was over");
}

TEST(GlooFailure, EndsTheCallsThatPeersHaveIssuedBeforehand) {
  run_gloo(3, [](ProcessGroup world) {
    Communicator& comm = world.communicator();
    if (world.rank() == 1) {
      Gather first(world, 1000, 1.0f);
      first.work->wait();
      comm.fail("out of tokens");
    } else {
      std::vector<Gather> gathers;
      for (int i = 0; i < 4; ++i) {
        gathers.emplace_back(world, 1000, static_cast<float>(1 + i));
      }
      gathers[0].work->wait();
      gathers[0].expect_result(1.0f);
      for (std::size_t i = 1; i < gathers.size(); ++i) {
        EXPECT_EQ(
            thrown_text<PeerError>([&] { gathers[i].work->wait(); }),
            prefix(world) + "rank 1 failed: out of tokens");
        EXPECT_EQ(comm.epoch(), 1u);
      }
    }
    EXPECT_EQ(comm.epoch(), 1u);
    expect_usable(world);
  });
}

TEST(GlooFailure, OvertakesTheCallsThatAreQueued) {
  std::latch failed(1);
  run_gloo(2, [&](ProcessGroup world) {
    if (world.rank() == 0) {
      // The peer has not come: the first is under way, the others are queued.
      std::vector<Gather> gathers;
      for (int i = 0; i < 4; ++i) {
        gathers.emplace_back(world, 1000, static_cast<float>(i));
      }
      world.communicator().fail("unit 'layers.2': nan");
      EXPECT_EQ(
          thrown_text<PeerError>([&] { gathers[3].work->wait(); }),
          "[rank 0] this rank failed before the call was made: unit "
          "'layers.2': nan");
      failed.count_down();
      // Not of interest how far the first has come; its buffers are free.
    } else {
      failed.wait();
      EXPECT_EQ(
          thrown_text<PeerError>([&] {
            for (int i = 0; i < 4; ++i) {
              Gather(world, 1000, static_cast<float>(i)).work->wait();
            }
          }),
          "[rank 1] rank 0 failed: unit 'layers.2': nan");
    }
    EXPECT_EQ(world.communicator().epoch(), 1u);
    expect_usable(world);
  });
}

TEST(GlooFailure, OfTwoRanksAtOnceCountsOnceEvenIfOneHadNotHeard) {
  for (int round = 0; round < 20; ++round) {
    run_gloo(3, [](ProcessGroup world) {
      Communicator& comm = world.communicator();
      if (world.rank() < 2) {
        Gather unheard(world, 1000, 1.0f); // rank 2 comes late, or never
        comm.fail("failure of " + std::to_string(world.rank()));
      } else {
        const std::string text = thrown_text<PeerError>([&] {
          Gather(world, 1000, 1.0f).work->wait();
          Gather(world, 1000, 1.0f).work->wait();
        });
        EXPECT_THAT(text, HasSubstr("failed: failure of "));
      }
      EXPECT_EQ(comm.epoch(), 1u);
      expect_usable(world);
    });
  }
}

TEST(GlooFailure, OfTheRankThatFailedFirstIsQuotedByAll) {
  std::latch first(1);
  std::latch second(1);
  run_gloo(4, [&](ProcessGroup world) {
    Communicator& comm = world.communicator();
    if (world.rank() == 2) {
      comm.fail("the cause");
      first.count_down();
    } else if (world.rank() == 1) {
      first.wait();
      comm.fail("a consequence");
      second.count_down();
    } else {
      second.wait();
      EXPECT_EQ(
          thrown_text<PeerError>([&] { world.barrier("the next step"); }),
          prefix(world) + "rank 2 failed: the cause");
    }
    EXPECT_EQ(comm.epoch(), 1u);
    expect_usable(world);
  });
}

TEST(GlooFailure, IsHeardAfterTheRankHasGone) {
  std::latch gone(1);
  run_gloo(2, [&](ProcessGroup world) {
    if (world.rank() == 1) {
      world.communicator().fail("the disk is full");
      world = ProcessGroup(nullptr);
      gone.count_down();
      return;
    }
    gone.wait();
    EXPECT_EQ(
        thrown_text<PeerError>([&] { world.barrier("the next step"); }),
        "[rank 0] rank 1 failed: the disk is full");
    EXPECT_EQ(
        thrown_text<PeerDiedError>([&] { world.barrier("the next step"); }),
        "[rank 0] rank 1 has left the group, and is waited for in barrier for "
        "'the next step'; see its last output, and start the job again");
  });
}

TEST(GlooDeadline, IsToldToTheLateRank) {
  std::latch timed_out(2);
  run_gloo(
      3,
      [&](ProcessGroup world) {
        const auto meet = [&] { world.barrier("the last step"); };
        if (world.rank() == 1) {
          timed_out.wait();
          meet(); // it has all that it needs: the others' requests
        }
        const std::string text = thrown_text<TimeoutError>(meet);
        EXPECT_EQ(
            text,
            prefix(world) +
                "timed out after 500 ms in barrier for 'the last step': rank 1 "
                "had not come; see what it did last, or raise the timeout, and "
                "start the job again");
        if (world.rank() != 1) {
          timed_out.count_down();
        }
        EXPECT_EQ(thrown_text<TimeoutError>(meet), text);
      },
      500ms);
}

TEST(GlooCounters, CountTheBytesThatLeaveTheRank) {
  run_gloo(4, [](ProcessGroup world) {
    Communicator& comm = world.communicator();
    const auto sent_in = [&](const std::function<void()>& call) {
      const std::int64_t before = comm.counters().bytes_sent;
      call();
      return comm.counters().bytes_sent - before;
    };
    const std::int64_t numel = 40'000;
    const std::int64_t bytes = numel * 4;
    std::vector<float> full(static_cast<std::size_t>(numel), 1.0f);
    std::vector<float> part(static_cast<std::size_t>(numel / 4));
    const std::vector<std::int64_t> counts(4, numel / 4);
    EXPECT_EQ(
        sent_in([&] {
          comm.all_gather(
                  part.data(), full.data(), counts, DType::kFloat32, "x")
              ->wait();
        }),
        bytes / 4 * 3);
    EXPECT_EQ(
        sent_in([&] {
          comm.reduce_scatter(
                  full.data(),
                  DType::kFloat32,
                  part.data(),
                  DType::kFloat32,
                  counts,
                  ReduceOp::kSum,
                  "x")
              ->wait();
        }),
        bytes / 4 * 3);
    EXPECT_EQ(
        sent_in([&] {
          comm.all_reduce(
              full.data(), numel, DType::kFloat32, ReduceOp::kSum, "x");
        }),
        2 * (bytes / 4 * 3));
    const std::int64_t broadcast = sent_in(
        [&] { comm.broadcast(full.data(), numel, DType::kFloat32, 1, "x"); });
    // The root hands out thirds, which the others hand on to two.
    EXPECT_NEAR(
        static_cast<double>(broadcast),
        static_cast<double>(world.rank() == 1 ? bytes : 2 * bytes / 3),
        16.0);
  });
}

/// One round of the same random program on every rank.
void random_round(const ProcessGroup& world, std::mt19937& random, int round) {
  Communicator& comm = world.communicator();
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  const int depth = 1 + pick(4);
  const std::size_t length = static_cast<std::size_t>(1 + pick(3) * 20'000);
  // Up to two ranks fail, each after it has issued some of the calls.
  const int failing[2] = {pick(2 * world.size()), pick(2 * world.size())};
  const int issued_first[2] = {pick(depth + 1), pick(depth + 1)};
  const bool drops = pick(3) == 0;

  int num_to_issue = depth;
  bool fails = false;
  for (int f = 0; f < 2; ++f) {
    if (failing[f] == world.rank()) {
      fails = true;
      num_to_issue = issued_first[f];
    }
  }
  const bool any_fails = failing[0] < world.size() || failing[1] < world.size();
  const std::uint64_t epoch = comm.epoch();
  try {
    std::vector<Gather> gathers;
    for (int i = 0; i < num_to_issue; ++i) {
      gathers.emplace_back(world, length, static_cast<float>(round + i));
    }
    if (fails) {
      comm.fail("round " + std::to_string(round));
      gathers.clear();
    }
    for (std::size_t i = 0; i < gathers.size() && !(drops && i > 0); ++i) {
      gathers[i].work->wait();
      gathers[i].expect_result(
          static_cast<float>(round) + static_cast<float>(i));
    }
    gathers.clear();
    if (!fails) {
      world.barrier("end of round");
      EXPECT_FALSE(any_fails);
    }
  } catch (const PeerError& error) {
    EXPECT_TRUE(any_fails);
    EXPECT_THAT(
        error.what(), ::testing::EndsWith("round " + std::to_string(round)));
  }
  ASSERT_EQ(comm.epoch(), epoch + (any_fails ? 1 : 0)) << "round " << round;
}

TEST(GlooFailure, LeavesEveryRankInTheSameEpochInRandomPrograms) {
  for (const int size : {2, 3, 5}) {
    run_gloo(size, [&](ProcessGroup world) {
      std::mt19937 random(static_cast<unsigned>(size)); // the same on all ranks
      for (int round = 0; round < 60; ++round) {
        random_round(world, random, 100 * round);
        expect_usable(world);
      }
    });
  }
}

} // namespace
} // namespace fsdp
