#include "runtime/memory_account.h"

#include <deque>
#include <mutex>
#include <utility>

namespace fsdp {

namespace {

thread_local MemoryAccount* t_account = nullptr;
thread_local MemoryComponent t_component = MemoryComponent::kActivations;

// Never destroyed: blocks outlive static objects and threads.
MemoryAccount& process_account() {
  static auto* account = new MemoryAccount();
  return *account;
}

bool raise(std::atomic<std::int64_t>& peak, std::int64_t bytes) {
  std::int64_t seen = peak.load(std::memory_order_relaxed);
  while (bytes > seen) {
    if (peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

} // namespace

std::string_view name_of(MemoryComponent component) {
  static constexpr std::array<std::string_view, kNumMemoryComponents> kNames{
      "parameters",
      "gradients",
      "optimizer state",
      "gathered",
      "reduction",
      "activations"};
  return kNames[static_cast<std::size_t>(component)];
}

void MemoryAccount::add(MemoryComponent component, std::int64_t bytes) {
  Use& use = uses_[static_cast<std::size_t>(component)];
  const std::int64_t current =
      use.current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const std::int64_t total =
      total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0) {
    raise(use.peak, current);
    note_total_peak(total);
  }
}

void MemoryAccount::note_total_peak(std::int64_t total) {
  if (!raise(total_peak_, total)) {
    return;
  }
  for (Use& each : uses_) {
    each.at_total_peak.store(
        each.current.load(std::memory_order_relaxed),
        std::memory_order_relaxed);
  }
}

void MemoryAccount::move(
    MemoryComponent from, MemoryComponent to, std::int64_t bytes) {
  uses_[static_cast<std::size_t>(from)].current.fetch_sub(
      bytes, std::memory_order_relaxed);
  Use& use = uses_[static_cast<std::size_t>(to)];
  raise(
      use.peak,
      use.current.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

MemoryReport MemoryAccount::report() const {
  MemoryReport report;
  for (std::size_t i = 0; i < kNumMemoryComponents; ++i) {
    report.components[i] = {
        .current = uses_[i].current.load(),
        .peak = uses_[i].peak.load(),
        .at_total_peak = uses_[i].at_total_peak.load()};
  }
  report.total = {
      .current = total_.load(),
      .peak = total_peak_.load(),
      .at_total_peak = total_peak_.load()};
  return report;
}

void MemoryAccount::reset_peaks() {
  for (Use& use : uses_) {
    // In this order a block made in between is not lost.
    use.peak.store(0);
    raise(use.peak, use.current.load());
  }
  total_peak_.store(0);
  note_total_peak(total_.load());
}

MemoryAccount& MemoryAccount::current() {
  return t_account != nullptr ? *t_account : process_account();
}

MemoryComponent current_component() {
  return t_component;
}

MemoryScope::MemoryScope(MemoryComponent component)
    : previous_(std::exchange(t_component, component)) {}

MemoryScope::~MemoryScope() {
  t_component = previous_;
}

RankMemory::RankMemory() {
  static std::mutex mutex;
  static auto* accounts = new std::deque<MemoryAccount>();
  const std::lock_guard lock(mutex);
  previous_ = std::exchange(t_account, &accounts->emplace_back());
}

RankMemory::~RankMemory() {
  t_account = previous_;
}

CountedBytes::CountedBytes(MemoryComponent component, std::int64_t bytes)
    : account_(&MemoryAccount::current()),
      component_(component),
      bytes_(bytes) {
  account_->add(component_, bytes_);
}

CountedBytes::CountedBytes(CountedBytes&& other) noexcept
    : account_(std::exchange(other.account_, nullptr)),
      component_(other.component_),
      bytes_(other.bytes_) {}

CountedBytes& CountedBytes::operator=(CountedBytes&& other) noexcept {
  std::swap(account_, other.account_);
  std::swap(component_, other.component_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CountedBytes::~CountedBytes() {
  if (account_ != nullptr) {
    account_->add(component_, -bytes_);
  }
}

void CountedBytes::count_as(MemoryComponent component) {
  account_->move(component_, component, bytes_);
  component_ = component;
}

} // namespace fsdp
