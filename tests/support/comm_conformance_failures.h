#pragma once
// Conformance: mismatches, failing ranks, deadlines, and use after them.
// Included by comm_conformance.h.

#include <latch>
#include <mutex>
#include <set>

#include "support/comm_conformance.h"
#include "support/comm_conformance_data.h"

namespace fsdp::testing {

inline void expect_sum_of_ranks(Communicator& comm) {
  std::int64_t sum = comm.rank() + 1;
  comm.all_reduce(&sum, 1, DType::kInt64, ReduceOp::kSum, "still usable");
  EXPECT_EQ(sum, comm.size() * (comm.size() + 1) / 2);
}

inline std::string mismatch_text(
    int rank, const std::string& first, int other, const std::string& second) {
  return rank_text(rank) +
         "ranks met with different requests: rank 0 asks for " + first +
         ", rank " + std::to_string(other) + " for " + second +
         "; every rank must issue the same calls in the same order";
}

TEST_P(CommFailure, DifferentRequestsAreNamedOnEveryRank) {
  struct Case {
    Request common;
    Request odd;
    std::string common_text;
    std::string odd_text;
  };
  const Request forward{
      .meeting = Meeting::kForward, .grad_enabled = true, .subject = "model"};
  const Request gather{
      .meeting = Meeting::kAllGather,
      .dtype = DType::kFloat32,
      .numel = 10,
      .subject = "layers.0"};
  Request no_grad = forward;
  no_grad.grad_enabled = false;
  Request other_unit = gather;
  other_unit.subject = "layers.1";
  Request other_size = gather;
  other_size.numel = 11;
  Request other_dtype = gather;
  other_dtype.dtype = DType::kBFloat16;
  Request broadcast = gather;
  broadcast.meeting = Meeting::kBroadcast;
  Request other_root = broadcast;
  other_root.root = 1;
  Request sum = gather;
  sum.meeting = Meeting::kReduceScatter;
  Request average = sum;
  average.op = ReduceOp::kAvg;
  const std::string gather_text =
      "all_gather(float32, 10 elements) for "
      "'layers.0'";
  const std::vector<Case> cases = {
      {gather, forward, gather_text, "forward(with grad) for 'model'"},
      {forward,
       no_grad,
       "forward(with grad) for 'model'",
       "forward(without grad) for 'model'"},
      {gather,
       other_unit,
       gather_text,
       "all_gather(float32, 10 elements) for 'layers.1'"},
      {gather,
       other_size,
       gather_text,
       "all_gather(float32, 11 elements) for 'layers.0'"},
      {gather,
       other_dtype,
       gather_text,
       "all_gather(bfloat16, 10 elements) for 'layers.0'"},
      {broadcast,
       other_root,
       "broadcast(float32, 10 elements, root 0) for 'layers.0'",
       "broadcast(float32, 10 elements, root 1) for 'layers.0'"},
      {sum,
       average,
       "reduce_scatter(sum, float32, 10 elements) for 'layers.0'",
       "reduce_scatter(avg, float32, 10 elements) for 'layers.0'"},
  };
  run([&](Communicator& comm) {
    const int odd_rank = comm.size() - 1;
    for (const Case& c : cases) {
      const std::uint64_t epoch = comm.epoch();
      const Request& own = comm.rank() == odd_rank ? c.odd : c.common;
      EXPECT_EQ(
          thrown_text<MismatchError>([&] { comm.meet(own); }),
          mismatch_text(comm.rank(), c.common_text, odd_rank, c.odd_text));
      EXPECT_EQ(comm.epoch(), epoch + 1);
      expect_sum_of_ranks(comm);
    }
  });
}

TEST_P(CommFailure, ADifferentCollectiveMovesNoData) {
  run([&](Communicator& comm) {
    const Counts counts(static_cast<std::size_t>(comm.size()), 5);
    const std::vector<float> input(
        static_cast<std::size_t>(total(counts)), 1.0f);
    std::vector<float> output(input.size(), -1.0f);
    const std::string text = thrown_text<MismatchError>([&] {
      if (comm.rank() == 0) {
        comm.all_gather(
                input.data(), output.data(), counts, DType::kFloat32, "a")
            ->wait();
      } else {
        comm.reduce_scatter(
                input.data(),
                DType::kFloat32,
                output.data(),
                DType::kFloat32,
                counts,
                ReduceOp::kSum,
                "b")
            ->wait();
      }
    });
    const std::string numel = std::to_string(total(counts));
    EXPECT_EQ(
        text,
        mismatch_text(
            comm.rank(),
            "all_gather(float32, " + numel + " elements) for 'a'",
            1,
            "reduce_scatter(sum, float32, " + numel + " elements) for 'b'"));
    EXPECT_EQ(output, std::vector<float>(input.size(), -1.0f));
    expect_sum_of_ranks(comm);
  });
}

TEST_P(CommFailure, DifferentCountsOfOneTotalAreAMismatch) {
  run([&](Communicator& comm) {
    const std::vector<float> input(16, 1.0f);
    std::vector<float> output(16, -1.0f);
    Counts counts(static_cast<std::size_t>(comm.size()), 1);
    counts[comm.rank() == 0 ? 0 : 1] = 2;
    const std::string numel = std::to_string(comm.size() + 1);
    EXPECT_EQ(
        thrown_text<MismatchError>([&] {
          comm.all_gather(
                  input.data(), output.data(), counts, DType::kFloat32, "x")
              ->wait();
        }),
        rank_text(comm.rank()) +
            "ranks met with different counts: rank 0 and rank 1 both ask for "
            "all_gather(float32, " +
            numel +
            " elements) for 'x', but split the elements over the ranks "
            "differently; every rank must pass the same counts");
    EXPECT_EQ(output, std::vector<float>(16, -1.0f));
    expect_sum_of_ranks(comm);
  });
}

TEST_P(CommFailure, AFailingRankIsNamedOnEveryOther) {
  run([&](Communicator& comm) {
    for (int failing = 0; failing < comm.size(); ++failing) {
      const std::uint64_t epoch = comm.epoch();
      if (comm.rank() == failing) {
        comm.fail(rank_text(failing) + "unit 'layers.1': out\nof range");
      } else {
        EXPECT_EQ(
            thrown_text<PeerError>([&] { comm.barrier("forward"); }),
            rank_text(comm.rank()) + "rank " + std::to_string(failing) +
                " failed: unit 'layers.1': out of range");
      }
      EXPECT_EQ(comm.epoch(), epoch + 1);
      expect_sum_of_ranks(comm);
    }
  });
}

TEST_P(CommFailure, ReachesRanksInsideCollectives) {
  run([&](Communicator& comm) {
    const int failing = comm.size() - 1;
    const Counts counts(static_cast<std::size_t>(comm.size()), 300'000);
    std::vector<float> data(static_cast<std::size_t>(total(counts)));
    for (int kind = 0; kind < 3; ++kind) {
      if (comm.rank() == failing) {
        comm.fail("gone wrong");
      } else {
        EXPECT_THAT(
            thrown_text<PeerError>([&] {
              if (kind == 0) {
                comm.all_gather(
                        data.data(), data.data(), counts, DType::kFloat32, "x")
                    ->wait();
              } else if (kind == 1) {
                comm.all_reduce(
                    data.data(),
                    total(counts),
                    DType::kFloat32,
                    ReduceOp::kSum,
                    "x");
              } else {
                comm.broadcast(
                    data.data(), total(counts), DType::kFloat32, failing, "x");
              }
            }),
            ::testing::EndsWith("failed: gone wrong"));
      }
      expect_sum_of_ranks(comm);
    }
  });
}

TEST_P(CommFailure, RanksThatFailInOneEpochHearNothingOfEachOther) {
  std::mutex mutex;
  std::set<std::string> texts;
  run([&](Communicator& comm) {
    if (comm.rank() < 2) {
      comm.fail("failure of " + std::to_string(comm.rank()));
    } else {
      const std::string text =
          thrown_text<PeerError>([&] { comm.barrier("forward"); });
      const std::lock_guard lock(mutex);
      texts.insert(text.substr(rank_text(comm.rank()).size()));
    }
    EXPECT_EQ(comm.epoch(), 1u);
    expect_sum_of_ranks(comm);
  });
  if (size() > 2) {
    EXPECT_THAT(
        texts,
        ::testing::AnyOf(
            ::testing::ElementsAre("rank 0 failed: failure of 0"),
            ::testing::ElementsAre("rank 1 failed: failure of 1")));
  }
}

TEST_P(CommFailure, TheGroupOutlivesManyFailures) {
  run([&](Communicator& comm) {
    const Counts counts(static_cast<std::size_t>(comm.size()), 1'000);
    for (int round = 0; round < 30; ++round) {
      const int failing = round % comm.size();
      if (comm.rank() == failing) {
        comm.fail("round " + std::to_string(round));
      } else {
        EXPECT_THAT(
            thrown_text<PeerError>([&] { comm.barrier("round"); }),
            ::testing::EndsWith("failed: round " + std::to_string(round)));
      }
      const std::vector<float> own(
          1'000, static_cast<float>(comm.rank() * 100 + round));
      std::vector<float> all(static_cast<std::size_t>(total(counts)));
      comm.all_gather(own.data(), all.data(), counts, DType::kFloat32, "g")
          ->wait();
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(
            all[i],
            static_cast<float>(i / 1'000 * 100) + static_cast<float>(round));
      }
    }
    EXPECT_EQ(comm.epoch(), 30u);
  });
}

TEST_P(CommFailure, ALateRankIsNamedByTheTimeout) {
  std::latch timed_out(size() - 1);
  run_with_timeout(std::chrono::milliseconds(300), [&](Communicator& comm) {
    const int late = comm.size() - 1;
    comm.barrier("everybody is here");
    if (comm.rank() == late) {
      timed_out.wait(); // alive, but elsewhere
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    const std::string text =
        thrown_text<TimeoutError>([&] { comm.barrier("the last step"); });
    const auto waited = std::chrono::steady_clock::now() - start;
    EXPECT_THAT(text, ::testing::StartsWith(rank_text(comm.rank())));
    EXPECT_THAT(text, ::testing::HasSubstr("timed out after 300 ms"));
    EXPECT_THAT(text, ::testing::HasSubstr("barrier for 'the last step'"));
    EXPECT_THAT(
        text,
        ::testing::HasSubstr("rank " + std::to_string(late) + " had not come"));
    EXPECT_GE(waited, std::chrono::milliseconds(290));
    EXPECT_LE(waited, std::chrono::seconds(5));
    timed_out.count_down();
  });
}

} // namespace fsdp::testing
