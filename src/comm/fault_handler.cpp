#include "comm/fault_handler.h"

#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace fsdp {

namespace {

constexpr std::size_t kNumRanges = 4096;
constexpr std::size_t kNameBytes = 191;

// Read by the signal handler without a lock: `begin` is set last and cleared
// first. A range is cleared before it is unmapped, so a reader that faults in
// it finds it whole.
struct NamedRange {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::size_t> name_bytes{0};
  std::array<std::atomic<char>, kNameBytes> name{};
};

// `context` is set before `listener` and read after it.
struct Listener {
  std::atomic<FaultListener> listener{nullptr};
  std::atomic<void*> context{nullptr};
};

constexpr std::size_t kNumListeners = 64;

std::array<NamedRange, kNumRanges> ranges;
std::array<Listener, kNumListeners> listeners;
std::atomic<std::size_t> num_used{0}; // places ever used: bounds the search
std::mutex writers;
struct sigaction previous_action;

class Line {
 public:
  void append(const char* text) {
    while (*text != '\0') {
      append(*text++);
    }
  }
  void append(char c) {
    if (length_ < sizeof(text_)) {
      text_[length_++] = c;
    }
  }
  std::string_view text() const { return {text_, length_}; }

 private:
  char text_[512];
  std::size_t length_ = 0;
};

void report(const NamedRange& range) {
  constexpr std::string_view kPrefix = "[fsdp] ";
  Line line;
  line.append("[fsdp] write to a gathered parameter: ");
  const std::size_t length = range.name_bytes.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < length; ++i) {
    line.append(range.name[i].load(std::memory_order_relaxed));
  }
  line.append(
      "; all ranks of this host read the same copy of it, so it is read-only: "
      "write to the sharded parameter, outside of forward and backward\n");
  const std::string_view text = line.text();
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, text.data(), text.size());
  for (const Listener& each : listeners) {
    const FaultListener listener =
        each.listener.load(std::memory_order_acquire);
    if (listener != nullptr) {
      listener(
          each.context.load(std::memory_order_relaxed),
          text.substr(kPrefix.size(), text.size() - kPrefix.size() - 1));
    }
  }
}

const NamedRange* find(std::uintptr_t address) {
  const std::size_t count = num_used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uintptr_t begin =
        ranges[i].begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin &&
        address < ranges[i].end.load(std::memory_order_relaxed)) {
      return &ranges[i];
    }
  }
  return nullptr;
}

// Async-signal-safe.
void on_fault(int signal_number, siginfo_t* info, void* context) {
  const bool is_sent = info->si_code <= 0; // by kill, not by an instruction
  const NamedRange* range =
      is_sent ? nullptr : find(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (range != nullptr) {
    report(*range);
  } else if (
      (previous_action.sa_flags & SA_SIGINFO) != 0 &&
      previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal_number, info, context);
    return;
  }
  // The instruction is run again on return and faults into whoever was there
  // before us, with all that a core dump or a sanitizer wants to see.
  sigaction(SIGSEGV, &previous_action, nullptr);
  if (is_sent) {
    raise(SIGSEGV);
  }
}

void install_once() {
  static bool is_installed = false; // guarded by `writers`
  if (is_installed) {
    return;
  }
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, nullptr, &previous_action);
  is_installed = sigaction(SIGSEGV, &action, nullptr) == 0;
}

} // namespace

int name_fault_range(
    const void* begin, std::size_t length, std::string_view name) {
  const std::lock_guard lock(writers);
  install_once();
  const auto place =
      std::find_if(ranges.begin(), ranges.end(), [](const NamedRange& range) {
        return range.begin.load(std::memory_order_relaxed) == 0;
      });
  if (place == ranges.end() || length == 0) {
    return -1;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t name_bytes = std::min(name.size(), kNameBytes);
  for (std::size_t i = 0; i < name_bytes; ++i) {
    place->name[i].store(name[i], std::memory_order_relaxed);
  }
  place->name_bytes.store(name_bytes, std::memory_order_relaxed);
  place->end.store(address + length, std::memory_order_relaxed);
  place->begin.store(address, std::memory_order_release);
  const auto ticket = static_cast<std::size_t>(place - ranges.begin());
  if (ticket >= num_used.load(std::memory_order_relaxed)) {
    num_used.store(ticket + 1, std::memory_order_release);
  }
  return static_cast<int>(ticket);
}

void forget_fault_range(int ticket) {
  if (ticket >= 0) {
    const std::lock_guard lock(writers);
    ranges[static_cast<std::size_t>(ticket)].begin.store(
        0, std::memory_order_release);
  }
}

int add_fault_listener(FaultListener listener, void* context) {
  const std::lock_guard lock(writers);
  for (std::size_t i = 0; i < kNumListeners; ++i) {
    if (listeners[i].listener.load(std::memory_order_relaxed) == nullptr) {
      listeners[i].context.store(context, std::memory_order_relaxed);
      listeners[i].listener.store(listener, std::memory_order_release);
      return static_cast<int>(i);
    }
  }
  return -1;
}

void remove_fault_listener(int ticket) {
  if (ticket >= 0) {
    const std::lock_guard lock(writers);
    listeners[static_cast<std::size_t>(ticket)].listener.store(
        nullptr, std::memory_order_release);
  }
}

} // namespace fsdp
