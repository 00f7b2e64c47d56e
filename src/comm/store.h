#pragma once
// The little key-value store through which ranks find each other.

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace fsdp {

/// Shared by all ranks of a job. Thread-safe. Keys are written once.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, std::string value) = 0;
  /// Waits for the key. Throws TimeoutError naming the key's purpose (`what`,
  /// e.g. "rank 3 to join the group") after `timeout`.
  virtual std::string get(
      const std::string& key,
      std::chrono::milliseconds timeout,
      std::string_view what) = 0;
};

/// For ranks that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, std::string value) override;
  std::string get(
      const std::string& key,
      std::chrono::milliseconds timeout,
      std::string_view what) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// `base` with every key prefixed: one store per group over one server.
std::shared_ptr<Store> prefixed(
    std::shared_ptr<Store> base, std::string prefix);

} // namespace fsdp
