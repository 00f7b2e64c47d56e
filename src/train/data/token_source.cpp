#include "train/data/token_source.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

class Concatenation final : public TokenSource {
 public:
  explicit Concatenation(std::vector<std::shared_ptr<const TokenSource>> parts)
      : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      ends_.push_back(size() + part->size());
    }
  }

  std::int64_t size() const override {
    return ends_.empty() ? 0 : ends_.back();
  }

  void copy(std::int64_t begin, std::span<std::int64_t> out) const override {
    auto part = static_cast<std::size_t>(
        std::ranges::upper_bound(ends_, begin) - ends_.begin());
    while (!out.empty()) {
      const std::int64_t part_begin = part == 0 ? 0 : ends_[part - 1];
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(
          ends_[part] - begin, static_cast<std::int64_t>(out.size())));
      parts_[part]->copy(begin - part_begin, out.first(count));
      out = out.subspan(count);
      begin = ends_[part++];
    }
  }

 private:
  std::vector<std::shared_ptr<const TokenSource>> parts_;
  std::vector<std::int64_t> ends_;
};

class Slice final : public TokenSource {
 public:
  Slice(
      std::shared_ptr<const TokenSource> source,
      std::int64_t begin,
      std::int64_t end)
      : source_(std::move(source)), begin_(begin), end_(end) {}

  std::int64_t size() const override { return end_ - begin_; }
  void copy(std::int64_t begin, std::span<std::int64_t> out) const override {
    source_->copy(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  std::int64_t begin_;
  std::int64_t end_;
};

} // namespace

void ByteSource::copy(std::int64_t begin, std::span<std::int64_t> out) const {
  std::copy_n(
      bytes_.begin() + begin,
      static_cast<std::ptrdiff_t>(out.size()),
      out.begin());
}

std::shared_ptr<const TokenSource> concatenate(
    std::vector<std::shared_ptr<const TokenSource>> parts) {
  return std::make_shared<const Concatenation>(std::move(parts));
}

std::shared_ptr<const TokenSource> slice(
    std::shared_ptr<const TokenSource> source,
    std::int64_t begin,
    std::int64_t end) {
  return std::make_shared<const Slice>(std::move(source), begin, end);
}

} // namespace fsdp
