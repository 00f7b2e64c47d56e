#include "runtime/block_cache.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsdp {

BlockCache& BlockCache::of_process() {
  // Never destroyed: tensors of static lifetime are freed after it would be.
  static auto* cache = new BlockCache();
  return *cache;
}

namespace {

void* allocate_after_clearing(BlockCache& cache, std::size_t bytes) {
  try {
    return c10::alloc_cpu(bytes);
  } catch (...) {
    cache.clear();
  }
  return c10::alloc_cpu(bytes);
}

} // namespace

void* BlockCache::take_kept(std::size_t bytes) {
  const auto found = std::ranges::find(free_, bytes, &Free::bytes);
  if (found == free_.end()) {
    return nullptr;
  }
  void* block = found->block;
  free_.erase(found);
  free_bytes_ -= bytes;
  used_bytes_ += bytes;
  return block;
}

void* BlockCache::take(std::size_t bytes) {
  std::list<Free> dropped;
  {
    const std::lock_guard lock(mutex_);
    if (void* block = take_kept(bytes)) {
      return block;
    }
    make_room(bytes, dropped);
  }
  for (const Free& each : dropped) {
    c10::free_cpu(each.block);
  }
  void* block = allocate_after_clearing(*this, bytes);
  const std::lock_guard lock(mutex_);
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return block;
}

void BlockCache::give_back(void* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
  free_bytes_ += bytes;
  free_.push_front({block, bytes});
}

void BlockCache::clear() {
  std::list<Free> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(free_);
    free_bytes_ = 0;
    peak_bytes_ = used_bytes_;
  }
  for (const Free& each : dropped) {
    c10::free_cpu(each.block);
  }
}

std::size_t BlockCache::num_bytes() {
  const std::lock_guard lock(mutex_);
  return used_bytes_ + free_bytes_;
}

void BlockCache::make_room(std::size_t bytes, std::list<Free>& dropped) {
  const std::size_t used = used_bytes_ + bytes;
  const std::size_t limit = std::max(peak_bytes_, used);
  while (!free_.empty() && used + free_bytes_ > limit) {
    free_bytes_ -= free_.back().bytes;
    dropped.splice(dropped.end(), free_, std::prev(free_.end()));
  }
}

} // namespace fsdp
