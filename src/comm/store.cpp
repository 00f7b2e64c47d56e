#include "comm/store.h"

#include <utility>

#include "comm/error_text.h"
#include "fsdp/error.h"

namespace fsdp {

void MemoryStore::set(const std::string& key, std::string value) {
  {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
  }
  changed_.notify_all();
}

std::string MemoryStore::get(
    const std::string& key,
    std::chrono::milliseconds timeout,
    std::string_view what) {
  std::unique_lock lock(mutex_);
  const bool found = changed_.wait_for(
      lock, timeout, [&] { return values_.find(key) != values_.end(); });
  if (!found) {
    throw TimeoutError(store_timeout_text(timeout, what));
  }
  return values_[key];
}

namespace {

class PrefixedStore final : public Store {
 public:
  PrefixedStore(std::shared_ptr<Store> base, std::string prefix)
      : base_(std::move(base)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, std::string value) override {
    base_->set(prefix_ + key, std::move(value));
  }

  std::string get(
      const std::string& key,
      std::chrono::milliseconds timeout,
      std::string_view what) override {
    return base_->get(prefix_ + key, timeout, what);
  }

 private:
  std::shared_ptr<Store> base_;
  std::string prefix_;
};

} // namespace

std::shared_ptr<Store> prefixed(
    std::shared_ptr<Store> base, std::string prefix) {
  return std::make_shared<PrefixedStore>(std::move(base), std::move(prefix));
}

} // namespace fsdp
