#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "fsdp/error.h"
#include "train/data/token_source.h"

namespace fsdp {
namespace {

constexpr std::int32_t kMagic = 20240520;
constexpr std::int32_t kMagicOf32Bits = 20240801; // llm.c's for Llama 3
constexpr std::int32_t kVersion = 1;
/// Files of any size are opened at once; the rest is checked when it is read.
constexpr std::int64_t kCheckedAtOnce = 1'000'000;
constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);

[[noreturn]] void fail(
    const std::filesystem::path& path, const std::string& what) {
  throw DataError("token file '" + path.string() + "': " + what);
}

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) {
      const int reason = errno;
      if (fd >= 0) {
        ::close(fd);
      }
      fail(path, std::string("cannot be read: ") + std::strerror(reason));
    }
    inode_ = status.st_ino;
    device_ = status.st_dev;
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ > 0) {
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    }
    const int reason = errno;
    ::close(fd);
    if (data_ == MAP_FAILED) {
      fail(path, std::string("cannot be mapped: ") + std::strerror(reason));
    }
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }

  /// Reading what the file has lost ends the process with SIGBUS, so throw
  /// before that. A file cut short between this look and the read still does
  /// it. The look goes by the path, as a descriptor kept for each of a
  /// thousand files would meet the limit on open ones; another file under that
  /// path leaves the mapped one whole.
  void check_size(const std::filesystem::path& path) const {
    struct stat status {};
    const bool same = ::stat(path.c_str(), &status) == 0 &&
                      status.st_ino == inode_ && status.st_dev == device_;
    const auto now = static_cast<std::size_t>(status.st_size);
    if (same && now < size_) {
      fail(
          path,
          "shrank from " + std::to_string(size_) + " to " +
              std::to_string(now) +
              " bytes while it was in use: leave it as it is until the run "
              "is over");
    }
  }

  const char* data() const { return static_cast<const char*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  ino_t inode_ = 0;
  dev_t device_ = 0;
};

class TokenFile final : public TokenSource {
 public:
  TokenFile(const std::filesystem::path& path, std::int64_t vocab_size)
      : path_(path), vocab_size_(vocab_size), file_(path) {
    read_header();
    const std::int64_t some = std::min(num_tokens_, kCheckedAtOnce);
    for (std::int64_t i = 0; i < some; ++i) {
      checked(i);
    }
  }

  std::int64_t size() const override { return num_tokens_; }

  void copy(std::int64_t begin, std::span<std::int64_t> out) const override {
    file_.check_size(path_);
    for (std::int64_t& token : out) {
      token = checked(begin++);
    }
  }

 private:
  std::int64_t at(std::int64_t index) const {
    std::uint16_t token = 0;
    std::memcpy(
        &token,
        file_.data() + offset_ + static_cast<std::size_t>(index) * sizeof token,
        sizeof token);
    return token;
  }

  void read_header() {
    std::array<std::int32_t, 3> header{};
    if (file_.size() > 0) {
      std::memcpy(
          header.data(), file_.data(), std::min(file_.size(), sizeof header));
    }
    if (header[0] == kMagicOf32Bits) {
      fail(
          path_,
          "32-bit tokens of llm.c's format (magic " +
              std::to_string(kMagicOf32Bits) + "), expected 16-bit ones (" +
              std::to_string(kMagic) + ")");
    }
    if (header[0] == kMagic) {
      if (file_.size() < kHeaderBytes) {
        fail(
            path_,
            "cut short: " + std::to_string(file_.size()) +
                " bytes, llm.c's header alone has " +
                std::to_string(kHeaderBytes));
      }
      if (header[1] != kVersion) {
        fail(
            path_,
            "version " + std::to_string(header[1]) + " of llm.c's format, " +
                "expected " + std::to_string(kVersion));
      }
      offset_ = kHeaderBytes;
    }
    const std::size_t bytes = file_.size() - offset_;
    num_tokens_ = static_cast<std::int64_t>(bytes / sizeof(std::uint16_t));
    if (bytes % sizeof(std::uint16_t) != 0) {
      fail(
          path_,
          std::to_string(file_.size()) +
              " bytes are no whole number of 16-bit tokens");
    }
    if (offset_ != 0 && header[2] != num_tokens_) {
      fail(
          path_,
          "its header promises " + std::to_string(header[2]) +
              " tokens, the file holds " + std::to_string(num_tokens_));
    }
  }

  std::int64_t checked(std::int64_t index) const {
    const std::int64_t token = at(index);
    if (token >= vocab_size_) {
      fail(
          path_,
          "token " + std::to_string(index) + " is " + std::to_string(token) +
              ", but the model's vocabulary holds " +
              std::to_string(vocab_size_) + ": use a preset with a larger one");
    }
    return token;
  }

  std::filesystem::path path_;
  std::int64_t vocab_size_;
  MappedFile file_;
  std::size_t offset_ = 0;
  std::int64_t num_tokens_ = 0;
};

} // namespace

std::shared_ptr<const TokenSource> open_token_file(
    const std::filesystem::path& path, std::int64_t vocab_size) {
  return std::make_shared<const TokenFile>(path, vocab_size);
}

} // namespace fsdp
