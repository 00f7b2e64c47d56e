#include "fsdp/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstddef>
#include <mutex>

#include "fsdp/error.h"

namespace fsdp {
namespace {

std::atomic<bool> g_installed{false};
std::atomic<std::int64_t> g_bytes{0};
std::atomic<std::int64_t> g_peak_bytes{0};

void raise_peak(std::int64_t bytes) {
  std::int64_t peak = g_peak_bytes.load(std::memory_order_relaxed);
  while (bytes > peak && !g_peak_bytes.compare_exchange_weak(
                             peak, bytes, std::memory_order_relaxed)) {
  }
}

void add_bytes(std::int64_t bytes) {
  raise_peak(g_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

// Each block is preceded by its size, padded so that the data keeps LibTorch's
// alignment. A map from address to size would need a lock per allocation.
constexpr std::size_t kHeaderBytes = c10::gAlignment;

void free_counted(void* data) {
  if (data == nullptr) {
    return;
  }
  std::byte* block = static_cast<std::byte*>(data) - kHeaderBytes;
  const auto bytes =
      static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(block));
  g_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  c10::profiledCPUMemoryReporter().Delete(data);
  c10::free_cpu(block);
}

/// LibTorch's own allocation (its huge pages, its out-of-memory error, its
/// profiler) with a count. The context of a block is its data pointer, as
/// raw_deleter() demands.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free_counted, c10::DeviceType::CPU};
    }
    void* block = nullptr;
    try {
      block = c10::alloc_cpu(bytes + kHeaderBytes);
    } catch (...) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    *static_cast<std::size_t*>(block) = bytes;
    void* data = static_cast<std::byte*>(block) + kHeaderBytes;
    add_bytes(static_cast<std::int64_t>(bytes));
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &free_counted, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(
      void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

// Never destroyed: tensors with static lifetime are freed after it would be.
CountingAllocator& counting_allocator() {
  static auto* allocator = new CountingAllocator();
  return *allocator;
}

} // namespace

void install_counting_allocator() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (c10::GetCPUAllocator() == &counting_allocator()) {
    return;
  }
  c10::SetCPUAllocator(&counting_allocator());
  // An allocator of higher priority stays in place without an error.
  if (c10::GetCPUAllocator() != &counting_allocator()) {
    throw Error(
        "install_counting_allocator: another CPU allocator of higher priority "
        "is in place; install the counting allocator before it, or do without "
        "the count of tensor bytes");
  }
  g_installed.store(true);
}

std::int64_t tensor_bytes() {
  return g_installed.load() ? g_bytes.load() : 0;
}

std::int64_t peak_tensor_bytes() {
  return g_installed.load() ? g_peak_bytes.load() : 0;
}

void reset_peak_tensor_bytes() {
  // In this order a block made in between is not lost.
  g_peak_bytes.store(0);
  raise_peak(g_bytes.load());
}

void count_tensor_bytes(std::int64_t bytes) {
  add_bytes(bytes);
}

} // namespace fsdp
