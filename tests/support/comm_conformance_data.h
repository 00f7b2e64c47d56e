#pragma once
// Conformance: gather and broadcast move bytes.
// Included by comm_conformance.h.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "support/comm_conformance.h"
#include "support/comm_conformance_reference.h"

namespace fsdp::testing {

constexpr DType kAllDTypes[] = {
    DType::kUInt8,
    DType::kInt8,
    DType::kInt16,
    DType::kInt32,
    DType::kInt64,
    DType::kBool,
    DType::kFloat8,
    DType::kFloat16,
    DType::kBFloat16,
    DType::kFloat32,
    DType::kFloat64,
    DType::kComplex64,
    DType::kComplex128};

/// Equal, uneven with empty shards, all on the last rank, nothing at all.
inline std::vector<Counts> count_patterns(int size) {
  const auto num_ranks = static_cast<std::size_t>(size);
  std::vector<Counts> patterns(4, Counts(num_ranks, 0));
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    patterns[0][rank] = 3;
    patterns[1][rank] = static_cast<std::int64_t>((rank * 3 + 2) % 5);
  }
  patterns[2].back() = 7;
  return patterns;
}

/// Bytes that tell rank, place and round apart; 0 and 1 for bool.
inline Bytes payload(int rank, std::size_t num_bytes, int salt, DType dtype) {
  Bytes bytes(num_bytes);
  for (std::size_t i = 0; i < num_bytes; ++i) {
    const std::size_t value = static_cast<std::size_t>(rank) * 37 + i * 11 +
                              i / 256 + static_cast<std::size_t>(salt) * 5;
    bytes[i] = static_cast<std::uint8_t>(
        dtype == DType::kBool ? value % 2 : value % 251);
  }
  return bytes;
}

inline Bytes concatenated(const Counts& counts, int salt, DType dtype) {
  Bytes all;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const Bytes part = payload(
        static_cast<int>(rank),
        static_cast<std::size_t>(counts[rank]) * size_of(dtype),
        salt,
        dtype);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_P(CommData, AllGatherMovesEveryDTypeWithUnevenAndEmptyShards) {
  run([&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    int salt = 0;
    for (const DType dtype : kAllDTypes) {
      for (const Counts& counts : count_patterns(comm.size())) {
        ++salt;
        const Bytes expected = concatenated(counts, salt, dtype);
        const std::size_t own_bytes =
            static_cast<std::size_t>(counts[rank]) * size_of(dtype);
        const Bytes input = payload(comm.rank(), own_bytes, salt, dtype);
        Bytes output(expected.size() + 16, 0xee);
        comm.all_gather(input.data(), output.data(), counts, dtype, "shards")
            ->wait();
        Bytes guarded = expected;
        guarded.resize(expected.size() + 16, 0xee);
        ASSERT_EQ(output, guarded)
            << name_of(dtype) << ", rank " << comm.rank();
      }
    }
  });
}

TEST_P(CommData, AllGatherTakesItsInputFromItsPlaceInTheOutput) {
  run([&](Communicator& comm) {
    for (const Counts& counts : count_patterns(comm.size())) {
      const Bytes expected = concatenated(counts, 1, DType::kInt32);
      const std::size_t place = static_cast<std::size_t>(
          std::accumulate(
              counts.begin(), counts.begin() + comm.rank(), std::int64_t{0}) *
          4);
      const Bytes own = payload(
          comm.rank(),
          static_cast<std::size_t>(
              counts[static_cast<std::size_t>(comm.rank())]) *
              4,
          1,
          DType::kInt32);
      Bytes output(expected.size() + 1, 0);
      std::copy(
          own.begin(),
          own.end(),
          output.begin() + static_cast<std::ptrdiff_t>(place));
      comm.all_gather(
              output.data() + place,
              output.data(),
              counts,
              DType::kInt32,
              "in place")
          ->wait();
      output.pop_back();
      ASSERT_EQ(output, expected) << "rank " << comm.rank();
    }
  });
}

TEST_P(CommData, AllGatherMovesShardsOfManyMegabytes) {
  run([&](Communicator& comm) {
    Counts counts(static_cast<std::size_t>(comm.size()));
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      counts[rank] =
          rank == 0 ? 700'001 : static_cast<std::int64_t>(rank % 3) * 300'007;
    }
    const Bytes expected = concatenated(counts, 3, DType::kFloat32);
    const auto own =
        static_cast<std::size_t>(counts[static_cast<std::size_t>(comm.rank())]);
    const Bytes input = payload(comm.rank(), own * 4, 3, DType::kFloat32);
    Bytes output(expected.size());
    comm.all_gather(
            input.data(), output.data(), counts, DType::kFloat32, "large")
        ->wait();
    ASSERT_TRUE(output == expected) << "rank " << comm.rank();
  });
}

/// Pieces of every rank in `num_arrays` arrays with gaps between them, of sizes
/// from nothing to more than what one round of staging holds.
inline std::vector<GatherPiece> scattered_pieces(
    int num_ranks, std::size_t largest) {
  std::vector<GatherPiece> pieces;
  std::size_t offset = 5;
  for (const std::size_t bytes : {std::size_t{0}, largest, std::size_t{3}}) {
    for (int rank = num_ranks - 1; rank >= 0; --rank) {
      const std::size_t own = bytes / (static_cast<std::size_t>(rank) + 1);
      pieces.push_back({rank, offset, own});
      offset += own + 7;
    }
  }
  return pieces;
}

TEST_P(CommData, AllGatherInPlaceMovesPiecesToTheSamePlaces) {
  run([&](Communicator& comm) {
    for (const std::size_t largest :
         {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
      const auto pieces = scattered_pieces(comm.size(), largest);
      Bytes expected(pieces.back().offset + pieces.back().bytes + 9, 0xee);
      Bytes buffer = expected;
      int salt = 0;
      for (const GatherPiece& piece : pieces) {
        const Bytes part =
            payload(piece.rank, piece.bytes, ++salt, DType::kUInt8);
        const auto at = static_cast<std::ptrdiff_t>(piece.offset);
        std::copy(part.begin(), part.end(), expected.begin() + at);
        if (piece.rank == comm.rank()) {
          std::copy(part.begin(), part.end(), buffer.begin() + at);
        }
      }
      comm.all_gather_in_place(buffer.data(), pieces, "pieces")->wait();
      EXPECT_EQ(buffer, expected) << largest;
    }
    comm.all_gather_in_place(nullptr, {}, "nothing")->wait();
  });
}

TEST_P(CommData, AllGatherInPlaceRefusesPiecesOfNoRank) {
  run([&](Communicator& comm) {
    Bytes buffer(4);
    const std::vector<GatherPiece> pieces{{comm.size(), 0, 4}};
    EXPECT_EQ(
        thrown_text<UsageError>(
            [&] { comm.all_gather_in_place(buffer.data(), pieces, "p"); }),
        "[rank " + std::to_string(comm.rank()) +
            "] all_gather(uint8, 0 elements) for 'p': a piece is rank " +
            std::to_string(comm.size()) + "'s; pass ranks from 0 to " +
            std::to_string(comm.size() - 1));
  });
}

TEST_P(CommData, BroadcastMovesEveryDTypeFromEveryRoot) {
  run([&](Communicator& comm) {
    int salt = 0;
    for (const DType dtype : kAllDTypes) {
      for (int root = 0; root < comm.size(); ++root) {
        for (const std::int64_t numel : {0, 1, 13}) {
          const std::size_t num_bytes =
              static_cast<std::size_t>(numel) * size_of(dtype);
          ++salt;
          Bytes data = payload(comm.rank(), num_bytes, salt, dtype);
          comm.broadcast(data.data(), numel, dtype, root, "buffer");
          ASSERT_EQ(data, payload(root, num_bytes, salt, dtype))
              << name_of(dtype) << ", root " << root;
        }
      }
    }
  });
}

TEST_P(CommData, BroadcastMovesManyMegabytes) {
  run([&](Communicator& comm) {
    const std::int64_t numel = 1'300'003;
    const std::size_t num_bytes = static_cast<std::size_t>(numel) * 2;
    const int root = comm.size() - 1;
    Bytes data = payload(comm.rank(), num_bytes, 9, DType::kBFloat16);
    comm.broadcast(data.data(), numel, DType::kBFloat16, root, "large");
    ASSERT_TRUE(data == payload(root, num_bytes, 9, DType::kBFloat16));
  });
}

TEST_P(CommData, RefusesImpossibleArgumentsOnEveryRank) {
  run([&](Communicator& comm) {
    float data[16] = {};
    const Counts too_many(static_cast<std::size_t>(comm.size()) + 1, 1);
    Counts negative(static_cast<std::size_t>(comm.size()), 1);
    negative[0] = -1;
    const auto gather = [&](const Counts& counts) {
      comm.all_gather(data, data, counts, DType::kFloat32, "x")->wait();
    };
    const auto broadcast_from = [&](int root) {
      comm.broadcast(data, 1, DType::kFloat32, root, "x");
    };
    EXPECT_THROW(gather(too_many), UsageError);
    EXPECT_THROW(gather(negative), UsageError);
    EXPECT_THROW(broadcast_from(-1), UsageError);
    EXPECT_THROW(broadcast_from(comm.size()), UsageError);
    EXPECT_THROW(
        comm.all_reduce(data, -1, DType::kFloat32, ReduceOp::kSum, "x"),
        UsageError);
    EXPECT_THROW(comm.broadcast(data, -1, DType::kFloat32, 0, "x"), UsageError);
    comm.barrier("still usable");
  });
}

TEST_P(CommData, CountersTellWhatWasDone) {
  run([&](Communicator& comm) {
    const CommCounters before = comm.counters();
    std::vector<float> data(64, 1.0f);
    const Counts counts(static_cast<std::size_t>(comm.size()), 8);
    std::vector<float> all(static_cast<std::size_t>(comm.size()) * 8);
    comm.meet({.meeting = Meeting::kForward, .subject = "model"});
    const std::int64_t num_after_meet = comm.counters().num_meetings;
    comm.all_gather(data.data(), all.data(), counts, DType::kFloat32, "g")
        ->wait();
    comm.reduce_scatter(
            all.data(),
            DType::kFloat32,
            data.data(),
            DType::kFloat32,
            counts,
            ReduceOp::kSum,
            "s")
        ->wait();
    comm.all_reduce(data.data(), 64, DType::kFloat32, ReduceOp::kSum, "r");
    comm.broadcast(data.data(), 64, DType::kFloat32, 0, "b");
    const CommCounters& after = comm.counters();
    EXPECT_EQ(num_after_meet - before.num_meetings, 1);
    EXPECT_EQ(after.num_all_gathers - before.num_all_gathers, 1);
    EXPECT_EQ(after.num_reduce_scatters - before.num_reduce_scatters, 1);
    EXPECT_EQ(after.num_all_reduces - before.num_all_reduces, 1);
    EXPECT_EQ(after.num_broadcasts - before.num_broadcasts, 1);
    if (comm.size() == 1) {
      EXPECT_EQ(after.bytes_sent, 0);
    } else {
      EXPECT_GE(after.bytes_sent - before.bytes_sent, 8 * 4);
    }
  });
}

} // namespace fsdp::testing
