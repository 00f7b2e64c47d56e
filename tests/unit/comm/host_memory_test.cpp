// Shared regions, the gradient stream and what only ranks of one host do, over
// inproc and shm.

#include "comm/host_memory.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <thread>

#include "fsdp/error.h"
#include "support/comm_ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Request message(std::string unit) {
  return {
      .meeting = Meeting::kGradients,
      .dtype = DType::kFloat32,
      .numel = 10,
      .subject = std::move(unit)};
}

TEST(SharedRegion, ShowsWritesInItsReadOnlyMapping) {
  const auto region = SharedRegion::create(5000, "weights");
  EXPECT_EQ(region->size(), 5000u);
  EXPECT_EQ(region->readable()[4999], std::byte{0});
  region->writable()[4999] = std::byte{7};
  EXPECT_EQ(region->readable()[4999], std::byte{7});
  EXPECT_NE(region->readable(), region->writable());
}

TEST(SharedRegion, MayBeEmpty) {
  const auto region = SharedRegion::create(0, "nothing");
  EXPECT_EQ(region->size(), 0u);
  EXPECT_NE(region->readable(), nullptr);
  region->name_range(0, 0, "nothing");
}

TEST(SharedRegion, RefusesMoreThanThereIsWithBothNumbers) {
  EXPECT_THAT(
      thrown_text<CommError>(
          [] { SharedRegion::create(std::size_t{1} << 50, "weights"); }),
      AllOf(
          StartsWith("cannot share memory for 'weights': 1125899906842624 "
                     "bytes are wanted, "),
          EndsWith("; use a smaller model, fewer ranks or a larger limit")));
}

TEST(SharedRegion, RefusesADescriptorOfAnotherSize) {
  const auto region = SharedRegion::create(100, "small");
  EXPECT_EQ(
      thrown_text<CommError>(
          [&] { SharedRegion::adopt(dup(region->fd()), 10'000); }),
      "a descriptor of shared memory is not the sealed region of 10000 bytes "
      "that was announced");
}

TEST(SharedRegion, RefusesNamesOutsideOfIt) {
  const auto region = SharedRegion::create(100, "small");
  EXPECT_THROW(region->name_range(90, 11, "x"), UsageError);
  EXPECT_THROW(region->name_range(101, 0, "x"), UsageError);
  region->name_range(90, 10, "x");
}

class HostRanks : public ::testing::TestWithParam<std::string> {
 protected:
  void run(int size, const RankBody& body) const {
    backend_on_threads(GetParam())(size, kLongTimeout, body);
  }
};

TEST_P(HostRanks, ShareWhatTheyAllocate) {
  run(4, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    for (const std::size_t bytes : {0u, 4u, 40'000u}) {
      const auto region = memory.allocate(bytes, "weights");
      ASSERT_EQ(region->size(), bytes);
      if (bytes > 0) {
        region->writable()[comm.rank()] =
            static_cast<std::byte>(comm.rank() + 1);
        comm.barrier("written");
        for (int rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(region->readable()[rank], static_cast<std::byte>(rank + 1));
        }
        comm.barrier("read");
      }
    }
  });
}

TEST_P(HostRanks, MustAllocateTheSame) {
  run(2, [](Communicator& comm) {
    EXPECT_THAT(
        thrown_text<MismatchError>([&] {
          comm.host_memory()->allocate(comm.rank() == 0 ? 10u : 20u, "weights");
        }),
        HasSubstr("rank 0 asks for allocate(10 bytes) for 'weights', rank 1 "
                  "for allocate(20 bytes) for 'weights'"));
  });
}

TEST_P(HostRanks, AllocateAfterAnAllocationThatFailed) {
  run(3, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    for (int round = 0; round < 3; ++round) {
      EXPECT_THROW(memory.allocate(std::size_t{1} << 50, "huge"), CommError);
      const auto region = memory.allocate(100, "small");
      EXPECT_EQ(region->size(), 100u);
    }
  });
}

TEST_P(HostRanks, PassMessagesInOrder) {
  run(3, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    constexpr std::uint64_t kNumMessages = 2'000;
    const auto region = memory.allocate(3 * 2 * 8, "gradients");
    const auto word = [&](std::byte* base, int rank, std::uint64_t number) {
      return reinterpret_cast<std::uint64_t*>(base) + rank * 2 + number % 2;
    };
    for (std::uint64_t i = 0; i <= kNumMessages; ++i) {
      if (i < kNumMessages) { // one message under way behind the next
        memory.wait_post_slot();
        *word(region->writable(), comm.rank(), i) =
            i * 10 + static_cast<std::uint64_t>(comm.rank());
        ASSERT_EQ(memory.post(message("unit " + std::to_string(i))), i);
      }
      if (i > 0) {
        memory.await(i - 1);
        for (int rank = 0; rank < 3; ++rank) {
          ASSERT_EQ(
              *word(region->writable(), rank, i - 1),
              (i - 1) * 10 + static_cast<std::uint64_t>(rank));
        }
        memory.consume(i - 1);
      }
    }
  });
}

// Rank 0 may post two messages, and the third only when rank 1 has consumed the
// first.
TEST_P(HostRanks, PostNoMoreThanTheStreamHolds) {
  std::atomic<bool> has_consumed = false;
  run(2, [&](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    memory.post(message("a"));
    memory.post(message("b"));
    comm.barrier("both have posted");
    memory.await(0);
    if (comm.rank() == 0) {
      memory.consume(0);
      memory.wait_post_slot();
      EXPECT_TRUE(has_consumed);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20)); // is slow
      has_consumed = true;
      memory.consume(0);
    }
    EXPECT_EQ(memory.post(message("c")), 2u);
    comm.barrier("end");
  });
}

TEST_P(HostRanks, MustUseTheStreamInOrder) {
  run(1, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    EXPECT_EQ(
        thrown_text<UsageError>([&] { memory.await(0); }),
        "[rank 0] gradient message 0 cannot be awaited: this rank has posted 0 "
        "and consumed 0");
    memory.post(message("a"));
    memory.post(message("b"));
    EXPECT_EQ(
        thrown_text<UsageError>([&] { memory.post(message("c")); }),
        "[rank 0] gradient message 0 must be consumed before message 2 can be "
        "posted");
    EXPECT_EQ(
        thrown_text<UsageError>([&] { memory.consume(1); }),
        "[rank 0] gradient message 1 cannot be consumed: the next one is 0 of "
        "2 posted");
    memory.consume(0);
    EXPECT_EQ(memory.post(message("c")), 2u);
  });
}

TEST_P(HostRanks, CompareMessages) {
  run(3, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    for (int round = 0; round < 5; ++round) {
      const std::uint64_t number =
          memory.post(message(comm.rank() == 2 ? "layers.1" : "layers.0"));
      EXPECT_EQ(number, 0u) << "numbers start again in each epoch";
      EXPECT_EQ(
          thrown_text<MismatchError>([&] { memory.await(number); }),
          rank_text(comm.rank()) +
              "ranks met with different requests: rank 0 asks for "
              "gradients(sum, float32, 10 elements) for 'layers.0', rank 2 for "
              "gradients(sum, float32, 10 elements) for 'layers.1'; every rank "
              "must issue the same calls in the same order");
      comm.barrier("still usable");
    }
  });
}

// Rank 1 does not await the message, but waits in a meeting.
TEST_P(HostRanks, LearnOfAMismatchWhereverTheyWait) {
  run(2, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    memory.post(message(comm.rank() == 0 ? "layers.0" : "layers.1"));
    EXPECT_THAT(
        thrown_text<MismatchError>([&] {
          if (comm.rank() == 0) {
            memory.await(0);
          } else {
            comm.barrier("end of the backward");
          }
        }),
        HasSubstr("for 'layers.0', rank 1 for gradients"));
    comm.barrier("still usable");
  });
}

TEST_P(HostRanks, HearOfAFailureInTheStream) {
  run(3, [](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t number = memory.post(message("layers.1"));
      if (comm.rank() == 1) {
        comm.fail("no memory");
      } else {
        memory.await(number); // rank 1 has posted it, whatever came then
        memory.consume(number);
        memory.post(message("layers.0"));
        EXPECT_EQ(
            thrown_text<PeerError>([&] { memory.await(number + 1); }),
            rank_text(comm.rank()) + "rank 1 failed: no memory");
      }
      EXPECT_EQ(memory.post(message("again")), 0u);
      memory.await(0);
      memory.consume(0);
    }
  });
}

// What a slow rank still reads is not written by a rank that failed and goes
// on: it waits for the slow one to notice.
TEST_P(HostRanks, DoNotOverwriteWhatASlowRankReads) {
  std::latch has_failed(1);
  std::atomic<bool> has_noticed = false;
  run(2, [&](Communicator& comm) {
    HostMemory& memory = *comm.host_memory();
    memory.post(message("a"));
    memory.await(0);
    if (comm.rank() == 0) {
      comm.fail("stop");
      has_failed.count_down();
      memory.wait_post_slot();
      EXPECT_TRUE(has_noticed);
    } else {
      has_failed.wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(20)); // reads on
      has_noticed = true;
      memory.consume(0);
      EXPECT_THROW(comm.barrier("next"), PeerError);
    }
    comm.barrier("still usable");
  });
}

TEST_P(HostRanks, HearOfEachFailureOnce) {
  run(3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      comm.fail("first");
      comm.fail("second");
    } else {
      for (const char* text : {"failed: first", "failed: second"}) {
        EXPECT_THAT(
            thrown_text<PeerError>([&] { comm.barrier("x"); }), EndsWith(text));
      }
    }
    EXPECT_EQ(comm.epoch(), 2u);
    comm.barrier("still usable");
  });
}

TEST_P(HostRanks, OutliveManyFailuresInARow) {
  run(2, [](Communicator& comm) {
    for (int round = 0; round < 7; ++round) {
      for (int i = 0; i < 10'000; ++i) {
        comm.fail("again");
      }
      comm.barrier("still usable");
    }
    EXPECT_EQ(comm.epoch(), 70'000u); // more than 16 bits
  });
}

// No history is kept of so many failures that nobody noticed.
TEST_P(HostRanks, HearOfFailuresBeyondTheHistory) {
  run(2, [](Communicator& comm) {
    comm.barrier("start");
    if (comm.rank() == 0) {
      for (int i = 0; i < 20; ++i) {
        comm.fail("failure " + std::to_string(i));
      }
    } else {
      for (int i = 0; i < 20; ++i) {
        EXPECT_THAT(
            thrown_text<PeerError>([&] { comm.barrier("x"); }),
            AnyOf(
                EndsWith("rank 0 failed: failure " + std::to_string(i)),
                EndsWith("it failed many times before this rank noticed")));
      }
    }
    comm.barrier("still usable");
  });
}

TEST_P(HostRanks, CutAndFlattenLongFailures) {
  run(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.fail("line\n" + std::string(5'000, 'x'));
    } else {
      EXPECT_EQ(
          thrown_text<PeerError>([&] { comm.barrier("x"); }),
          "[rank 1] rank 0 failed: line " + std::string(1'011, 'x'));
    }
  });
}

TEST_P(HostRanks, NameARankThatHasLeft) {
  std::latch is_over(2);
  run(3, [&](Communicator& comm) {
    comm.barrier("start");
    if (comm.rank() == 1) {
      return; // its communicator ends
    }
    const std::string text =
        thrown_text<PeerDiedError>([&] { comm.barrier("x"); });
    EXPECT_EQ(
        text,
        rank_text(comm.rank()) +
            "rank 1 has left the group, and is waited for in barrier for 'x'; "
            "see its last output, and start the job again");
    EXPECT_EQ(thrown_text<PeerDiedError>([&] { comm.barrier("y"); }), text)
        << "the group cannot be used again";
    is_over.arrive_and_wait();
  });
}

TEST_P(HostRanks, ThrowTheTimeoutAgain) {
  std::latch is_over(2);
  backend_on_threads(GetParam())(
      3, std::chrono::milliseconds(100), [&](Communicator& comm) {
        comm.barrier("start");
        if (comm.rank() == 0) {
          is_over.wait();
          return;
        }
        const std::string text =
            thrown_text<TimeoutError>([&] { comm.barrier("x"); });
        EXPECT_THAT(
            text,
            StartsWith(
                rank_text(comm.rank()) +
                "timed out after 100 ms in barrier for 'x': rank 0 had not "
                "come; see what it did last"));
        EXPECT_EQ(thrown_text<TimeoutError>([&] { comm.barrier("y"); }), text);
        is_over.count_down();
      });
}

TEST_P(HostRanks, CountTheTimeTheyWait) {
  run(2, [](Communicator& comm) {
    comm.barrier("start");
    const auto before = comm.counters().waited;
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60)); // is slow
    }
    comm.barrier("end");
    const auto waited = comm.counters().waited - before;
    if (comm.rank() == 0) {
      EXPECT_GE(waited, std::chrono::milliseconds(40));
    }
  });
}

TEST_P(HostRanks, NameBothRequestsWhenAMeetingMeetsAGradientMessage) {
  run(3, [](Communicator& comm) {
    comm.barrier("begin");
    const std::string text = thrown_text<MismatchError>([&] {
      if (comm.rank() == 1) {
        comm.meet({.meeting = Meeting::kForward, .subject = "unit 'a'"});
      } else {
        HostMemory& memory = *comm.host_memory();
        memory.await(memory.post(message("unit 'b'")));
      }
    });
    EXPECT_THAT(
        text,
        AllOf(
            HasSubstr("ranks met with different requests: rank "),
            HasSubstr("for unit 'a'"),
            HasSubstr("for unit 'b'"),
            HasSubstr("rank 1"),
            EndsWith("every rank must issue the same calls in the same "
                     "order")));
    comm.barrier("after the mismatch");
  });
}

TEST_P(HostRanks, CountTheBytesTheyStage) {
  run(4, [](Communicator& comm) {
    std::vector<float> data(4'000, 1.0f);
    std::vector<float> part(4'000);
    const std::vector<std::int64_t> counts(4, 1'000);
    const auto bytes_of = [&](auto call) {
      const std::int64_t before = comm.counters().bytes_sent;
      call();
      return comm.counters().bytes_sent - before;
    };
    EXPECT_EQ(
        bytes_of([&] {
          comm.all_gather(
              part.data(), data.data(), counts, DType::kFloat32, "x");
        }),
        4'000);
    EXPECT_EQ(
        bytes_of([&] {
          comm.reduce_scatter(
              data.data(),
              DType::kFloat32,
              part.data(),
              DType::kFloat32,
              counts,
              ReduceOp::kSum,
              "x");
        }),
        12'000);
    EXPECT_EQ(
        bytes_of([&] {
          comm.broadcast(data.data(), 4'000, DType::kFloat32, 2, "x");
        }),
        comm.rank() == 2 ? 16'000 : 0);
    std::vector<float> large(40'000, 1.0f);
    EXPECT_EQ(
        bytes_of([&] {
          comm.all_reduce(
              large.data(), 40'000, DType::kFloat32, ReduceOp::kSum, "x");
        }),
        160'000);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Threads,
    HostRanks,
    ::testing::Values("inproc", "shm"),
    [](const auto& backend) { return backend.param; });

} // namespace
} // namespace fsdp::testing
