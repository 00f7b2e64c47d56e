#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/fault_handler.h"
#include "comm/host_memory.h"
#include "comm/memory_limits.h"
#include "core/align.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A memfd of no bytes cannot be mapped.
std::size_t mapped_bytes(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return align_up(std::max<std::size_t>(1, bytes), page);
}

[[noreturn]] void throw_errno(std::string_view what, std::size_t bytes) {
  const int error = errno;
  throw CommError(
      "cannot " + std::string(what) + " of " + std::to_string(bytes) +
      " bytes: " + std::strerror(error) +
      "; see the limits of this process on memory and open files");
}

void check_available(std::size_t bytes, std::string_view label) {
  const MemoryLimit limit = available_memory();
  if (bytes > limit.available_bytes) {
    throw CommError(
        "cannot share memory for '" + std::string(label) +
        "': " + std::to_string(bytes) + " bytes are wanted, " +
        std::to_string(limit.available_bytes) + " are available (" +
        limit.source + "); use a smaller model, fewer ranks or a larger limit");
  }
}

std::byte* map(int fd, std::size_t bytes, int protection) {
  void* address =
      mmap(nullptr, mapped_bytes(bytes), protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw_errno("map shared memory", bytes);
  }
  return static_cast<std::byte*>(address);
}

} // namespace

std::shared_ptr<SharedRegion> SharedRegion::create(
    std::size_t bytes, std::string_view label) {
  check_available(mapped_bytes(bytes), label);
  const int fd = memfd_create("fsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    throw_errno("make shared memory", bytes);
  }
  const auto length = static_cast<off_t>(mapped_bytes(bytes));
  if (ftruncate(fd, length) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    throw_errno("size and seal shared memory", bytes);
  }
  return adopt(fd, bytes);
}

std::shared_ptr<SharedRegion> SharedRegion::adopt(int fd, std::size_t bytes) {
  std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->fd_ = fd;
  region->size_ = bytes;
  struct stat status {};
  const bool is_sealed = (fcntl(fd, F_GET_SEALS) & kSeals) == kSeals;
  if (fstat(fd, &status) != 0 || !is_sealed ||
      static_cast<std::size_t>(status.st_size) != mapped_bytes(bytes)) {
    throw CommError(
        "a descriptor of shared memory is not the sealed region of " +
        std::to_string(bytes) + " bytes that was announced");
  }
  region->writable_ = map(fd, bytes, PROT_READ | PROT_WRITE);
  region->readable_ = map(fd, bytes, PROT_READ);
  return region;
}

SharedRegion::~SharedRegion() {
  clear_names();
  if (readable_ != nullptr) {
    munmap(readable_, mapped_bytes(size_));
  }
  if (writable_ != nullptr) {
    munmap(writable_, mapped_bytes(size_));
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

void SharedRegion::clear_names() {
  const std::lock_guard lock(names_mutex_);
  for (const Name& name : names_) {
    forget_fault_range(name.ticket);
  }
  names_.clear();
}

void SharedRegion::name_range(
    std::size_t offset, std::size_t length, std::string name) {
  if (offset > size_ || length > size_ - offset) {
    throw UsageError(
        "cannot name bytes [" + std::to_string(offset) + ", " +
        std::to_string(offset) + " + " + std::to_string(length) +
        ") of a shared region of " + std::to_string(size_) + " bytes");
  }
  const std::lock_guard lock(names_mutex_);
  // Ranks that are threads share the region, and each names the same ranges.
  const bool is_known =
      std::any_of(names_.begin(), names_.end(), [&](const Name& known) {
        return known.offset == offset && known.length == length;
      });
  if (is_known || length == 0) {
    return;
  }
  const int ticket = name_fault_range(readable_ + offset, length, name);
  if (ticket >= 0) {
    names_.push_back({offset, length, ticket});
  }
}

} // namespace fsdp
