#include "fsdp/memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "fsdp/error.h"
#include "runtime/block_cache.h"
#include "runtime/gradient_arena.h"
#include "runtime/memory_account.h"

namespace fsdp {
namespace {

std::atomic<bool> g_installed{false};

/// Before each block, padded so that the data keeps LibTorch's alignment. A map
/// from address to size would need a lock per allocation.
struct BlockHeader {
  std::int64_t bytes;
  MemoryAccount* account;
  MemoryComponent component;
  std::shared_ptr<GradientArena> arena; ///< null: LibTorch's heap
};
constexpr std::size_t kHeaderBytes = GradientArena::kHeaderBytes;
static_assert(
    kHeaderBytes == c10::gAlignment && sizeof(BlockHeader) <= kHeaderBytes);

BlockHeader& header_of(void* data) {
  return *reinterpret_cast<BlockHeader*>(
      static_cast<std::byte*>(data) - kHeaderBytes);
}

bool is_kept(std::size_t bytes) {
  return bytes >= BlockCache::kSmallest;
}

void free_counted(void* data) {
  if (data == nullptr) {
    return;
  }
  BlockHeader& header = header_of(data);
  header.account->add(header.component, -header.bytes);
  c10::profiledCPUMemoryReporter().Delete(data);
  const auto arena = std::move(header.arena);
  const auto bytes = static_cast<std::size_t>(header.bytes);
  header.~BlockHeader();
  if (arena) {
    arena->give_back(
        reinterpret_cast<std::byte*>(&header), bytes + kHeaderBytes);
  } else if (is_kept(bytes)) {
    BlockCache::of_process().give_back(&header, bytes + kHeaderBytes);
  } else {
    c10::free_cpu(&header);
  }
}

/// Room for `bytes` and the header, from an arena if the size is that of an
/// expected gradient.
void* allocate_block(std::size_t bytes, std::shared_ptr<GradientArena>& arena) {
  const ExpectedGradients* expected = ExpectedGradients::current();
  // A shard may have the size of another parameter's gradient, and stays.
  const bool may_stay = current_component() == MemoryComponent::kGradients;
  if (expected != nullptr && !may_stay && expected->includes(bytes)) {
    if (void* block = expected->arena->take(bytes + kHeaderBytes)) {
      arena = expected->arena;
      return block;
    }
  }
  return is_kept(bytes) ? BlockCache::of_process().take(bytes + kHeaderBytes)
                        : c10::alloc_cpu(bytes + kHeaderBytes);
}

void drop_counted_bytes(void* context) {
  delete static_cast<CountedBytes*>(context);
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
    std::shared_ptr<GradientArena> arena;
    try {
      block = allocate_block(bytes, arena);
    } catch (...) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    void* data = static_cast<std::byte*>(block) + kHeaderBytes;
    BlockHeader& header = *new (block) BlockHeader{
        .bytes = static_cast<std::int64_t>(bytes),
        .account = &MemoryAccount::current(),
        .component = current_component(),
        .arena = std::move(arena)};
    header.account->add(header.component, header.bytes);
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

MemoryReport memory_report() {
  return g_installed.load() ? MemoryAccount::current().report()
                            : MemoryReport();
}

void empty_memory_cache() {
  BlockCache::of_process().clear();
}

void reset_peak_memory() {
  MemoryAccount::current().reset_peaks();
}

void count_as(const at::Tensor& tensor, MemoryComponent component) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return;
  }
  const at::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() == &drop_counted_bytes) {
    static_cast<CountedBytes*>(data.get_context())->count_as(component);
    return;
  }
  // A view's storage, too, begins where its block does.
  if (data.get_deleter() != &free_counted || data.get() == nullptr) {
    return;
  }
  BlockHeader& header = header_of(data.get_context());
  header.account->move(header.component, component, header.bytes);
  header.component = component;
}

c10::DataPtr counted_data(void* data, std::int64_t bytes, c10::Device device) {
  return {
      data,
      new CountedBytes(current_component(), bytes),
      &drop_counted_bytes,
      device};
}

} // namespace fsdp
