#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <string>

#include "fsdp/error.h"
#include "support/ranks.h"
#include "support/throws.h"

namespace fsdp {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using testing::thrown_text;

class TensorCollectives : public ::testing::TestWithParam<const char*> {
 protected:
  static void run(int size, const std::function<void(ProcessGroup)>& body) {
    testing::with_ranks(size, body, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Backends, TensorCollectives, ::testing::Values("inproc", "gloo"));

TEST_P(TensorCollectives, ReduceInPlaceWhateverTheStrides) {
  for (const int size : {1, 2, 3}) {
    run(size, [&](const ProcessGroup& world) {
      const double rank = world.rank();
      const double sum = size * (size - 1) / 2.0;
      const Tensor all = at::full({3, 4}, rank, at::kDouble);
      world.all_reduce(all);
      EXPECT_TRUE(at::equal(all, at::full({3, 4}, sum, at::kDouble)));

      const Tensor whole = at::full({3, 4}, rank);
      world.all_reduce(whole.t()[1], ReduceOp::kAvg);
      EXPECT_TRUE(at::allclose(
          whole.t()[1], at::full({3}, sum / size, at::kFloat), 1e-6));
      EXPECT_TRUE(at::equal(whole.t()[2], at::full({3}, rank, at::kFloat)));

      const Tensor leaf = at::ones({}, at::kFloat).requires_grad_();
      world.all_reduce(leaf, ReduceOp::kMax);
      EXPECT_EQ(leaf.item<float>(), 1);
    });
  }
}

TEST_P(TensorCollectives, BroadcastEveryDtypeFromAnyRank) {
  run(3, [](const ProcessGroup& world) {
    for (const auto dtype : {at::kBool, at::kInt, at::kBFloat16}) {
      for (int src = 0; src < 3; ++src) {
        const Tensor tensor = at::full({2, 2}, world.rank() == src, dtype);
        world.broadcast(tensor, src);
        EXPECT_TRUE(at::equal(tensor, at::ones({2, 2}, dtype)));
      }
    }
    world.broadcast(at::empty({0}), 1);
  });
}

TEST_P(TensorCollectives, RefuseWhatTheRanksCannotDoTogether) {
  run(2, [](const ProcessGroup& world) {
    const std::string rank = "[rank " + std::to_string(world.rank()) + "] ";
    EXPECT_THAT(
        thrown_text<Error>([&] { world.all_reduce(at::ones({2}, at::kInt)); }),
        HasSubstr(rank + "all_reduce(sum, int32, 2 elements)"));
    EXPECT_THAT(
        thrown_text<Error>([&] { world.broadcast(at::ones({2}), 2); }),
        HasSubstr("root is 2; it must be a rank from 0 to 1"));
    EXPECT_EQ(
        thrown_text<Error>([&] {
          world.all_reduce(at::empty({2}, at::TensorOptions(at::kMeta)));
        }),
        rank + "all_reduce: the tensor is on meta; pass one on the CPU");
    EXPECT_THAT(
        thrown_text<Error>(
            [&] { world.all_reduce(at::ones({2 + world.rank()})); }),
        HasSubstr("all_reduce(sum, float32, 3 elements)"));
    world.barrier();
  });
}

} // namespace
} // namespace fsdp
