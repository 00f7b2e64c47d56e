#include "runtime/gradient_arena.h"

#include <utility>

#include "comm/host_memory.h"
#include "core/align.h"

namespace fsdp {

namespace {

constexpr std::size_t kAlignment = 64;

thread_local std::shared_ptr<const ExpectedGradients> t_expected;

} // namespace

GradientArena::GradientArena(
    std::shared_ptr<SharedRegion> region, std::size_t begin, std::size_t bytes)
    : region_(std::move(region)),
      begin_(region_->writable() + begin),
      bytes_(bytes) {}

std::size_t GradientArena::footprint(std::size_t bytes) {
  return align_up(bytes, kAlignment);
}

std::optional<std::size_t> GradientArena::offset_of(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  if (at < begin_ || at >= begin_ + bytes_) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(at - region_->writable());
}

std::byte* GradientArena::take(std::size_t bytes) {
  const std::size_t size = footprint(bytes);
  const std::lock_guard lock(mutex_);
  std::byte* block = nullptr;
  if (auto& free = free_[size]; !free.empty()) {
    block = free.back();
    free.pop_back();
  } else if (size <= bytes_ - used_up_to_) {
    block = begin_ + used_up_to_;
    used_up_to_ += size;
  } else {
    return nullptr;
  }
  ++num_alive_;
  return block;
}

void GradientArena::give_back(std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (--num_alive_ == 0) {
    // The next backward may need other sizes.
    free_.clear();
    used_up_to_ = 0;
    return;
  }
  free_[footprint(bytes)].push_back(block);
}

const ExpectedGradients* ExpectedGradients::current() {
  return t_expected.get();
}

void ExpectedGradients::set_current(
    std::shared_ptr<const ExpectedGradients> expected) {
  t_expected = std::move(expected);
}

} // namespace fsdp
