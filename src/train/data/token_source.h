#pragma once
// Where tokens come from: a flat, immutable sequence.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace fsdp {

/// Thread-safe: nothing changes after construction.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  /// Copies tokens [begin, begin + out.size()); the range must lie inside.
  virtual void copy(std::int64_t begin, std::span<std::int64_t> out) const = 0;
};

/// Bytes of text, each a token.
class ByteSource final : public TokenSource {
 public:
  explicit ByteSource(std::vector<std::uint8_t> bytes)
      : bytes_(std::move(bytes)) {}
  std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes_.size());
  }
  void copy(std::int64_t begin, std::span<std::int64_t> out) const override;
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

/// A token file by memory map: nanoGPT's (raw uint16) or llm.c's (a header of
/// 256 int32 that begins with magic 20240520, version 1 and the token count,
/// then uint16). Neither magic can begin nanoGPT's: as tokens they are beyond
/// GPT-2's vocabulary. Throws DataError if it cannot be read, is llm.c's with
/// 32-bit tokens or another version, if its length does not fit the header, or
/// if one of its first million tokens is not below `vocab_size`; copy() throws
/// it for the others, and if the file has become shorter.
std::shared_ptr<const TokenSource> open_token_file(
    const std::filesystem::path& path, std::int64_t vocab_size);

/// One after the other, as one sequence; `parts` is not empty.
std::shared_ptr<const TokenSource> concatenate(
    std::vector<std::shared_ptr<const TokenSource>> parts);

/// Tokens [begin, end) of `source`.
std::shared_ptr<const TokenSource> slice(
    std::shared_ptr<const TokenSource> source,
    std::int64_t begin,
    std::int64_t end);

} // namespace fsdp
