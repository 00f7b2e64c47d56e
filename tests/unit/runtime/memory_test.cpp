#include "fsdp/memory.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "runtime/counted_region.h"

// For the allocation that fails on purpose: AddressSanitizer ends the process
// by default. Without it nobody calls this.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace {

using fsdp::MemoryComponent;

std::int64_t live_bytes() {
  return fsdp::memory_report().total.current;
}

std::int64_t peak_bytes() {
  return fsdp::memory_report().total.peak;
}

at::Tensor floats(std::int64_t numel) {
  return at::empty({numel}, at::kFloat);
}

// Each of these runs in a process of its own: installing cannot be undone.

TEST(CountingAllocator, CountsNothingBeforeItIsInstalled) {
  const at::Tensor before = floats(1000);
  const fsdp::CountedBytes mapped(MemoryComponent::kGathered, 12);
  EXPECT_EQ(live_bytes(), 0);
  EXPECT_EQ(peak_bytes(), 0);
}

TEST(CountingAllocator, CountsTheBytesOfLivingTensors) {
  at::Tensor older = floats(500);
  fsdp::install_counting_allocator();
  EXPECT_EQ(live_bytes(), 0);
  at::Tensor first = floats(1000);
  EXPECT_EQ(live_bytes(), 4000);
  {
    const at::Tensor second = floats(10);
    const at::Tensor view = second.slice(0, 0, 5);
    EXPECT_EQ(live_bytes(), 4040);
  }
  EXPECT_EQ(live_bytes(), 4000);
  older = at::Tensor(); // freed by the allocator that made it
  EXPECT_EQ(live_bytes(), 4000);
  first = at::Tensor();
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, KeepsThePeakUntilItIsReset) {
  fsdp::install_counting_allocator();
  const at::Tensor kept = floats(100);
  { const at::Tensor dropped = floats(1000); }
  EXPECT_EQ(peak_bytes(), 4400);
  { const at::Tensor smaller = floats(200); }
  EXPECT_EQ(peak_bytes(), 4400);
  fsdp::reset_peak_memory();
  EXPECT_EQ(peak_bytes(), 400);
  { const at::Tensor smaller = floats(200); }
  EXPECT_EQ(peak_bytes(), 1200);
}

TEST(CountingAllocator, FollowsAStorageThatGrows) {
  fsdp::install_counting_allocator();
  at::Tensor tensor = floats(100);
  tensor.resize_({300});
  EXPECT_EQ(live_bytes(), 1200);
}

TEST(CountingAllocator, AddsBytesThatNoTensorAllocationSees) {
  fsdp::install_counting_allocator();
  {
    fsdp::CountedBytes mapped(MemoryComponent::kGathered, 1 << 20);
    const fsdp::CountedBytes moved = std::move(mapped);
    EXPECT_EQ(live_bytes(), 1 << 20);
    EXPECT_EQ(peak_bytes(), 1 << 20);
  }
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, CountsByComponent) {
  fsdp::install_counting_allocator();
  const at::Tensor activation = floats(10);
  at::Tensor state;
  {
    const fsdp::MemoryScope outer(MemoryComponent::kOptimizerState);
    state = floats(100);
    {
      const fsdp::MemoryScope inner(MemoryComponent::kGradients);
      const at::Tensor dropped = floats(1000);
    }
    state = at::cat({state, floats(1)});
  }
  const fsdp::MemoryReport report = fsdp::memory_report();
  EXPECT_EQ(report[MemoryComponent::kActivations].current, 40);
  EXPECT_EQ(report[MemoryComponent::kOptimizerState].current, 404);
  EXPECT_EQ(report[MemoryComponent::kOptimizerState].peak, 400 + 4 + 404);
  EXPECT_EQ(report[MemoryComponent::kGradients].current, 0);
  EXPECT_EQ(report[MemoryComponent::kGradients].peak, 4000);
  EXPECT_EQ(report.total.current, 444);
  EXPECT_EQ(report.total.peak, 4440);
  EXPECT_EQ(report[MemoryComponent::kGradients].at_total_peak, 4000);
  EXPECT_EQ(report[MemoryComponent::kOptimizerState].at_total_peak, 400);
  EXPECT_EQ(report[MemoryComponent::kActivations].at_total_peak, 40);
}

TEST(CountingAllocator, MovesATensorToAnotherComponent) {
  const at::Tensor foreign = floats(7);
  fsdp::install_counting_allocator();
  at::Tensor tensor = floats(10);
  fsdp::count_as(tensor.slice(0, 4), MemoryComponent::kGradients);
  EXPECT_EQ(fsdp::memory_report()[MemoryComponent::kGradients].current, 40);
  EXPECT_EQ(fsdp::memory_report()[MemoryComponent::kActivations].current, 0);
  EXPECT_EQ(fsdp::memory_report().total.current, 40);
  tensor = at::Tensor();
  EXPECT_EQ(fsdp::memory_report()[MemoryComponent::kGradients].current, 0);
  fsdp::count_as(foreign, MemoryComponent::kGradients);
  fsdp::count_as(at::Tensor(), MemoryComponent::kGradients);
  fsdp::count_as(floats(0), MemoryComponent::kGradients);
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, RanksThatAreThreadsCountForThemselves) {
  fsdp::install_counting_allocator();
  at::Tensor handed_over;
  std::thread([&handed_over] {
    const fsdp::RankMemory mine;
    handed_over = floats(100);
    EXPECT_EQ(live_bytes(), 400);
  }).join();
  EXPECT_EQ(live_bytes(), 0);
  handed_over = at::Tensor(); // off the account of the thread that made it
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountedRegion, CountsEachSharedByteOnce) {
  fsdp::install_counting_allocator();
  const auto region = fsdp::SharedRegion::create(1000, "test");
  for (const int num_ranks : {1, 2, 3, 7}) {
    std::vector<fsdp::CountedRegion> counted;
    for (int rank = 0; rank < num_ranks; ++rank) {
      counted.emplace_back(region, MemoryComponent::kGathered, rank, num_ranks);
    }
    EXPECT_EQ(live_bytes(), 1000);
  }
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, KeepsLargeBlocksForTheNextTensor) {
  fsdp::install_counting_allocator();
  at::Tensor tensor = floats(1 << 18);
  const void* place = tensor.const_data_ptr();
  tensor = at::Tensor();
  EXPECT_EQ(live_bytes(), 0) << "what is kept does not count";
  // The C library unmaps the first large block, and takes the next from its
  // heap.
  tensor = floats(1 << 18);
  EXPECT_EQ(tensor.const_data_ptr(), place);
  fsdp::empty_memory_cache();
}

TEST(CountingAllocator, AlignsLikeLibTorchAndHoldsData) {
  fsdp::install_counting_allocator();
  for (const std::int64_t bytes : {1, 63, 64, 4096, 3 << 20}) {
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0U);
    std::memset(tensor.data_ptr(), 7, static_cast<std::size_t>(bytes));
    EXPECT_EQ(tensor.sum().item<std::int64_t>(), 7 * bytes);
  }
  EXPECT_EQ(at::empty({0}, at::kByte).numel(), 0);
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, ServesTheRawInterface) {
  fsdp::install_counting_allocator();
  c10::Allocator* allocator = c10::GetCPUAllocator();
  ASSERT_NE(allocator->raw_deleter(), nullptr);
  void* data = allocator->raw_allocate(256);
  EXPECT_EQ(live_bytes(), 256);
  allocator->raw_deallocate(data);
  allocator->raw_deallocate(nullptr);
  EXPECT_EQ(live_bytes(), 0);
}

TEST(CountingAllocator, CountsFreesByOtherThreads) {
  fsdp::install_counting_allocator();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        at::Tensor tensor = floats(100 + i);
        std::thread([tensor = std::move(tensor)]() mutable {
          tensor = at::Tensor();
        }).join();
        fsdp::install_counting_allocator();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(live_bytes(), 0);
  EXPECT_GE(peak_bytes(), 4 * 299);
  EXPECT_LE(peak_bytes(), 4 * 4 * 299);
}

TEST(CountingAllocator, CountsNothingOfAnAllocationThatFails) {
  fsdp::install_counting_allocator();
  EXPECT_THROW(floats(std::int64_t{1} << 55), c10::Error);
  EXPECT_EQ(live_bytes(), 0);
}

class ForeignAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(
      void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

TEST(CountingAllocator, SaysSoWhenAnotherAllocatorHasPriority) {
  static ForeignAllocator foreign;
  c10::SetCPUAllocator(&foreign, 255);
  try {
    fsdp::install_counting_allocator();
    FAIL() << "no error";
  } catch (const fsdp::Error& error) {
    EXPECT_STREQ(
        error.what(),
        "install_counting_allocator: another CPU allocator of higher priority "
        "is in place; install the counting allocator before it, or do without "
        "the count of tensor bytes");
  }
  EXPECT_EQ(live_bytes(), 0);
}

#ifdef NDEBUG // without optimisation both allocators cost something else
double nanoseconds_per_block(c10::Allocator& allocator, std::size_t bytes) {
  constexpr int kBlocks = 20000;
  double best = 1e9;
  for (int round = 0; round < 15; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBlocks; ++i) {
      const c10::DataPtr data = allocator.allocate(bytes);
    }
    const std::chrono::duration<double, std::nano> spent =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / kBlocks);
  }
  return best;
}

TEST(CountingAllocator, CostsLittleMoreThanTheDefault) {
  c10::Allocator* plain = c10::GetCPUAllocator();
  fsdp::install_counting_allocator();
  for (const std::size_t bytes : {64, 4096, 65536}) {
    const double before = nanoseconds_per_block(*plain, bytes);
    const double after = nanoseconds_per_block(*c10::GetCPUAllocator(), bytes);
    RecordProperty(
        "default_ns_" + std::to_string(bytes), std::to_string(before));
    RecordProperty(
        "counting_ns_" + std::to_string(bytes), std::to_string(after));
    EXPECT_LT(after, 1.5 * before + 50) << bytes << " bytes";
  }
}
#endif

} // namespace
