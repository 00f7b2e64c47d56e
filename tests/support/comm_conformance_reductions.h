#pragma once
// Conformance: sums, averages and maxima, bit by bit against a plain loop over
// the ranks. Included by comm_conformance.h.

#include <cmath>
#include <limits>

#include "support/comm_conformance.h"
#include "support/comm_conformance_data.h"
#include "support/comm_conformance_reference.h"

namespace fsdp::testing {

inline void expect_reduce_scatter(Communicator& comm, const ReductionCase& c) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const Elements expected = c.expected_of(comm.rank());
  const Bytes input = c.inputs[rank].bytes();
  Bytes result(expected.bytes().size(), 0);
  comm.reduce_scatter(
          input.data(),
          c.reduction.input,
          result.data(),
          c.output,
          c.counts,
          c.reduction.op,
          "grads")
      ->wait();
  ASSERT_TRUE(expected.are(result)) << c << ", rank " << rank;
}

TEST_P(CommReduction, ReduceScatterEqualsAnOrderedLoopBitByBit) {
  std::vector<ReductionCase> cases;
  for (const Reduction& reduction : kReductions) {
    for (Counts counts : count_patterns(size())) {
      cases.emplace_back(reduction, reduction.input, counts);
      for (std::int64_t& count : counts) {
        count *= 401;
      }
      cases.emplace_back(reduction, reduction.input, counts);
      if (reduction.op != ReduceOp::kMax) {
        cases.emplace_back(reduction, DType::kFloat32, counts);
      }
    }
  }
  run([&](Communicator& comm) {
    for (const ReductionCase& c : cases) {
      expect_reduce_scatter(comm, c);
    }
  });
}

TEST_P(CommReduction, ReduceScatterTakesManyMegabytes) {
  Counts counts(static_cast<std::size_t>(size()), 50'001);
  counts.back() = 0;
  counts.front() = 300'000;
  const std::vector<ReductionCase> cases = {
      {{DType::kFloat32, ReduceOp::kAvg}, DType::kFloat32, counts},
      {{DType::kBFloat16, ReduceOp::kSum}, DType::kFloat32, counts}};
  run([&](Communicator& comm) {
    for (const ReductionCase& c : cases) {
      expect_reduce_scatter(comm, c);
    }
  });
}

TEST_P(CommReduction, AllReduceEqualsAnOrderedLoopBitByBit) {
  std::vector<ReductionCase> cases;
  Counts counts(static_cast<std::size_t>(size()), 0);
  for (const Reduction& reduction : kReductions) {
    for (const std::int64_t numel : {0, 1, 5, 1000, 20'011}) {
      counts[0] = numel;
      cases.emplace_back(reduction, reduction.input, counts);
    }
  }
  counts[0] = 300'011; // more than one staging buffer holds
  cases.emplace_back(kReductions[0], kReductions[0].input, counts);
  run([&](Communicator& comm) {
    for (const ReductionCase& c : cases) {
      Bytes data = c.inputs[static_cast<std::size_t>(comm.rank())].bytes();
      comm.all_reduce(
          data.data(),
          total(c.counts),
          c.reduction.input,
          c.reduction.op,
          "norm");
      ASSERT_TRUE(c.expected.are(data)) << c << ", rank " << comm.rank();
    }
  });
}

// 1e8 + 1 is 1e8 in float32: the sum tells in which order it was taken.
TEST_P(CommReduction, SumsGoInRankOrder) {
  const auto value_of = [](int rank) {
    return rank == 0 ? 1e8f : rank == 2 ? -1e8f : 1.0f;
  };
  float in_order = 0;
  float rank_1_last = 0;
  for (int rank = 0; rank < size(); ++rank) {
    in_order += value_of(rank);
    rank_1_last += rank == 1 ? 0.0f : value_of(rank);
  }
  rank_1_last += 1.0f;
  if (size() >= 3) {
    ASSERT_NE(in_order, rank_1_last) << "the inputs must tell orders apart";
  }
  run([&](Communicator& comm) {
    const float own = value_of(comm.rank());
    for (const std::size_t numel : {3u, 100'003u}) {
      std::vector<float> data(numel, own);
      comm.all_reduce(
          data.data(),
          static_cast<std::int64_t>(numel),
          DType::kFloat32,
          ReduceOp::kSum,
          "order");
      ASSERT_EQ(data, std::vector<float>(numel, in_order));
    }
    const Counts counts(static_cast<std::size_t>(comm.size()), 40'001);
    const std::vector<float> input(
        static_cast<std::size_t>(total(counts)), own);
    std::vector<float> output(40'001);
    comm.reduce_scatter(
            input.data(),
            DType::kFloat32,
            output.data(),
            DType::kFloat32,
            counts,
            ReduceOp::kSum,
            "order")
        ->wait();
    ASSERT_EQ(output, std::vector<float>(40'001, in_order));
  });
}

TEST_P(CommReduction, NaNAndInfinityReachEveryRank) {
  run([&](Communicator& comm) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const bool is_last = comm.rank() == comm.size() - 1;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      float data[] = {is_last ? nan : 1.0f, is_last ? infinity : 1.0f};
      comm.all_reduce(data, 2, DType::kFloat32, op, "overflow");
      EXPECT_TRUE(std::isnan(data[0])) << fsdp::name_of(op);
      EXPECT_EQ(data[1], infinity) << fsdp::name_of(op);
    }
    std::int64_t extreme = std::numeric_limits<std::int64_t>::min();
    comm.all_reduce(&extreme, 1, DType::kInt64, ReduceOp::kMax, "max");
    EXPECT_EQ(extreme, std::numeric_limits<std::int64_t>::min());
  });
}

TEST_P(CommReduction, RefusesOtherDTypesByNameOnEveryRank) {
  run([&](Communicator& comm) {
    const std::string rank = rank_text(comm.rank());
    const auto all_reduce = [&](DType dtype, ReduceOp op) {
      return thrown_text<UsageError>([&] {
        std::uint64_t data[8] = {};
        comm.all_reduce(data, 4, dtype, op, "x");
      });
    };
    const std::string list =
        " is not supported; sum and avg take float16, bfloat16, float32 and "
        "float64, sum also int64, max takes float32 and int64";
    EXPECT_EQ(
        all_reduce(DType::kInt64, ReduceOp::kAvg),
        rank + "all_reduce(avg, int64, 4 elements) for 'x': avg of int64" +
            list);
    EXPECT_EQ(
        all_reduce(DType::kInt32, ReduceOp::kSum),
        rank + "all_reduce(sum, int32, 4 elements) for 'x': sum of int32" +
            list);
    EXPECT_EQ(
        all_reduce(DType::kBFloat16, ReduceOp::kMax),
        rank +
            "all_reduce(max, bfloat16, 4 elements) for 'x': max of bfloat16" +
            list);
    for (const DType dtype :
         {DType::kUInt8, DType::kBool, DType::kFloat8, DType::kComplex64}) {
      EXPECT_THAT(
          all_reduce(dtype, ReduceOp::kSum),
          ::testing::HasSubstr(
              "sum of " + std::string(fsdp::name_of(dtype)) +
              " is not supported"));
    }
    const Counts counts(static_cast<std::size_t>(comm.size()), 1);
    const std::string widened = thrown_text<UsageError>([&] {
      std::uint64_t data[8] = {};
      comm.reduce_scatter(
              data,
              DType::kFloat32,
              data,
              DType::kBFloat16,
              counts,
              ReduceOp::kSum,
              "x")
          ->wait();
    });
    EXPECT_EQ(
        widened,
        rank + "reduce_scatter(sum, float32, " + std::to_string(comm.size()) +
            (comm.size() == 1 ? " element" : " elements") +
            ") for 'x': the output cannot be bfloat16; it must have the "
            "input's dtype, or float32");
    comm.barrier("still usable");
  });
}

} // namespace fsdp::testing
