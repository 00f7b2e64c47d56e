#pragma once
// Adds the time of a scope to a total.

#include <chrono>

namespace fsdp {

class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::nanoseconds& total) : total_(total) {}
  ~Stopwatch() { total_ += std::chrono::steady_clock::now() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::chrono::nanoseconds& total_;
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

} // namespace fsdp
