#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little);

/// What the reference implementation accepts.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

[[noreturn]] void fail(
    const std::filesystem::path& path, const std::string& what) {
  throw DataError("safetensors file '" + path.string() + "': " + what);
}

UniqueFd open_regular(
    const std::filesystem::path& path, std::uint64_t& num_bytes) {
  // A pipe would be waited for.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    fail(path, std::string("cannot be read: ") + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(path, "is no regular file");
  }
  num_bytes = static_cast<std::uint64_t>(status.st_size);
  return fd;
}

void read_exactly(
    const std::filesystem::path& path,
    int fd,
    std::uint64_t offset,
    std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      fail(path, std::string("cannot be read: ") + std::strerror(errno));
    }
    if (got == 0) {
      fail(
          path,
          "ends at byte " + std::to_string(offset) + ", " +
              std::to_string(out.size()) +
              " bytes early: leave it as it is while it is in use");
    }
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

} // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path) {
  std::uint64_t file_bytes = 0;
  fd_ = open_regular(path, file_bytes);
  std::uint64_t json_bytes = 0;
  if (file_bytes < sizeof json_bytes) {
    fail(
        path,
        "has " + std::to_string(file_bytes) +
            " bytes, the length of its header alone takes 8");
  }
  read_exactly(
      path, fd_.get(), 0, std::as_writable_bytes(std::span(&json_bytes, 1)));
  if (json_bytes > kMaxHeaderBytes) {
    fail(
        path,
        "promises a header of " + std::to_string(json_bytes) +
            " bytes, expected at most " + std::to_string(kMaxHeaderBytes));
  }
  if (json_bytes > file_bytes - sizeof json_bytes) {
    fail(
        path,
        "promises a header of " + std::to_string(json_bytes) +
            " bytes, but has " +
            std::to_string(file_bytes - sizeof json_bytes) + " after it");
  }
  std::string json(static_cast<std::size_t>(json_bytes), '\0');
  read_exactly(
      path,
      fd_.get(),
      sizeof json_bytes,
      std::as_writable_bytes(std::span(json)));
  header_ = parse_safetensors_header(
      path, json, sizeof json_bytes + json_bytes, file_bytes);
  for (std::size_t i = 0; i < header_.entries.size(); ++i) {
    index_.emplace(header_.entries[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    fail(path_, "holds no tensor '" + std::string(name) + "'");
  }
  return *entry;
}

void SafetensorsFile::read(
    const SafetensorsEntry& entry, std::span<std::byte> out) const {
  if (out.size() != entry.num_bytes) {
    throw UsageError(
        "safetensors: tensor '" + entry.name + "' has " +
        std::to_string(entry.num_bytes) + " bytes, got room for " +
        std::to_string(out.size()) + ": pass memory of its size");
  }
  read_exactly(path_, fd_.get(), entry.offset, out);
}

} // namespace fsdp
