#include "runtime/gather_pool.h"

#include <gtest/gtest.h>

#include "fsdp/memory.h"

namespace fsdp {
namespace {

// In processes of their own: the counting allocator cannot be removed.

TEST(GatherPool, GivesABlockOfTheSameSizeAgain) {
  GatherPool pool{c10::Device(c10::kCPU)};
  auto first = pool.take(1 << 20, "a");
  const std::byte* memory = first->writable;
  pool.give_back(std::move(first));
  const auto second = pool.take(1 << 20, "b");
  EXPECT_EQ(second->writable, memory);
}

TEST(GatherPool, NeverHoldsMoreThanWasInUseAtOnce) {
  install_counting_allocator();
  {
    GatherPool pool{c10::Device(c10::kCPU)};
    const std::int64_t page = 4096;
    for (int round = 0; round < 2; ++round) {
      for (int unit = 1; unit <= 20; ++unit) {
        auto block = pool.take(static_cast<std::size_t>(unit * page), "unit");
        EXPECT_LE(
            memory_report().total.current, (round == 0 ? unit : 20) * page);
        pool.give_back(std::move(block));
      }
    }
    EXPECT_LE(memory_report().total.current, 20 * page);
  }
  EXPECT_EQ(memory_report().total.current, 0);
}

} // namespace
} // namespace fsdp
