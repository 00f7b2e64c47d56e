#include "runtime/block_cache.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace fsdp {
namespace {

constexpr std::size_t kBytes = 1 << 20;

TEST(BlockCache, HandsOutBlocksOfTheSameSizeAgain) {
  BlockCache cache;
  void* first = cache.take(kBytes);
  void* second = cache.take(kBytes);
  std::memset(first, 1, kBytes);
  cache.give_back(first, kBytes);
  cache.give_back(second, kBytes);
  EXPECT_EQ(cache.take(kBytes), second) << "the last used one is warm";
  EXPECT_EQ(cache.take(kBytes), first);
  cache.give_back(first, kBytes);
  cache.give_back(second, kBytes);
  cache.clear();
}

TEST(BlockCache, NeverHoldsMoreThanWasInUseAtOnce) {
  BlockCache cache;
  void* one = cache.take(3 * kBytes);
  cache.give_back(one, 3 * kBytes);
  EXPECT_EQ(cache.num_bytes(), 3 * kBytes);
  void* other = cache.take(kBytes); // drops the block of 3
  EXPECT_EQ(cache.num_bytes(), kBytes);
  void* more = cache.take(2 * kBytes);
  cache.give_back(other, kBytes);
  EXPECT_EQ(cache.num_bytes(), 3 * kBytes);
  cache.give_back(more, 2 * kBytes);
  cache.clear();
  EXPECT_EQ(cache.num_bytes(), 0U);
}

TEST(BlockCache, GivesEverythingBackBeforeItFails) {
  BlockCache cache;
  cache.give_back(cache.take(kBytes), kBytes);
  EXPECT_THROW(
      cache.take(std::numeric_limits<std::size_t>::max() / 4), c10::Error);
  EXPECT_EQ(cache.num_bytes(), 0U);
  cache.give_back(cache.take(kBytes), kBytes);
  EXPECT_EQ(cache.num_bytes(), kBytes) << "the failure is in no count";
  cache.give_back(cache.take(kBytes + 64), kBytes + 64);
  EXPECT_EQ(cache.num_bytes(), kBytes + 64) << "nor in the peak";
  cache.clear();
}

TEST(BlockCache, ServesThreads) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (std::size_t i = 1; i < 200; ++i) {
        const std::size_t bytes = (i % 5 + 1) * kBytes / 4;
        auto* block = static_cast<char*>(cache.take(bytes));
        std::memset(block, t, 4096);
        std::this_thread::yield();
        EXPECT_EQ(block[0], t);
        EXPECT_EQ(block[4095], t);
        cache.give_back(block, bytes);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LE(cache.num_bytes(), 4 * 5 * kBytes / 4);
  cache.clear();
}

} // namespace
} // namespace fsdp
