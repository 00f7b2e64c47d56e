#pragma once
// Memory that all ranks of a group map, and the ordered hand-over of messages
// between them: what the shared-memory engine is built on. See
// Communicator::host_memory(). No LibTorch.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace fsdp {

/// One block of memory mapped twice: for reading and writing by the library,
/// and read-only for everybody else, so that a stray write faults instead of
/// corrupting every rank. Backed by a sealed memfd: nothing is left behind
/// after a crash. Pages are zero at first. Both mappings live as long as this.
class SharedRegion {
 public:
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  /// A region of this process alone (or, by its descriptor, of those it is
  /// handed to). Throws CommError naming bytes wanted and available when the
  /// machine's available memory or the cgroup's limit is smaller: a memfd
  /// reserves nothing and would end in the OOM killer.
  static std::shared_ptr<SharedRegion> create(
      std::size_t bytes, std::string_view label);
  /// Maps a descriptor made by create() in any process; takes ownership of it.
  static std::shared_ptr<SharedRegion> adopt(int fd, std::size_t bytes);

  std::byte* writable() const { return writable_; }
  const std::byte* readable() const { return readable_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_; }

  /// Names bytes [offset, offset + length) of the read-only mapping for the
  /// fault handler: "parameter 'weight' of unit 'layers.0'". A write there ends
  /// the process with SIGSEGV after one line on the standard error that holds
  /// the name. At most 4096 names are kept over all regions; a range that has a
  /// name keeps it. Thread-safe.
  void name_range(std::size_t offset, std::size_t length, std::string name);
  /// Forgets the names, before the memory serves something else. Thread-safe.
  void clear_names();

 private:
  struct Name {
    std::size_t offset;
    std::size_t length;
    int ticket; // of the fault handler
  };

  SharedRegion() = default;
  std::mutex names_mutex_;
  std::vector<Name> names_;
  int fd_ = -1;
  std::size_t size_ = 0;
  std::byte* writable_ = nullptr;
  std::byte* readable_ = nullptr;
};

/// The shared side of a group whose ranks are on one host.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  /// [collective] A region mapped by every rank.
  virtual std::shared_ptr<SharedRegion> allocate(
      std::size_t bytes, std::string_view label) = 0;

  /// The gradient stream: numbered messages, each posted by every rank in the
  /// same order, without waiting for each other.
  ///
  /// post() announces this rank's next message (its data already written to
  /// memory that the others map) and returns its number, 0 first in each epoch.
  /// At most `kStreamDepth` messages may be unconsumed: post waits until every
  /// rank has consumed message number - kStreamDepth.
  virtual std::uint64_t post(const Request& request) = 0;

  /// Waits until the next post() would not block: the memory of the message
  /// kStreamDepth before may be written again.
  virtual void wait_post_slot() = 0;

  /// Waits until every rank has posted message `number`, and compares the
  /// requests (MismatchError).
  virtual void await(std::uint64_t number) = 0;

  /// This rank no longer reads the others' data of message `number`.
  virtual void consume(std::uint64_t number) = 0;

  static constexpr std::uint64_t kStreamDepth = 2;
};

} // namespace fsdp
