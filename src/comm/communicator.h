#pragma once
// How the ranks of one group talk. One small interface; `self`, `inproc`,
// `shm` and `gloo` are behind it, and the runtime knows no other.
//
// Rules for every call marked [collective]:
//  - every rank of the group calls it, in the same order, with an equal Request
//    (rank-dependent data excepted); before any data moves the requests are
//    compared and a difference throws MismatchError on every rank;
//  - one thread at a time uses a communicator;
//  - a wait that passes the group's timeout throws TimeoutError; a peer that
//    died throws PeerDiedError; a peer that called `fail` throws PeerError.
//
// Sums are taken in rank order (rank 0 first), so that their bits do not depend
// on arrival or on the backend: float16, bfloat16 and float32 accumulate in
// float32 (float64 in float64, int64 in int64), are divided by the group size
// for kAvg, and are rounded once to the output type.
//
// On an accelerator a call is enqueued on the calling thread's current stream
// of the buffers' device; on the CPU it has happened when it, or the returned
// Work's wait(), returns.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "fsdp/reduce_op.h"

namespace fsdp {

class HostMemory;

/// What a rank asks for when ranks meet.
enum class Meeting : std::uint8_t {
  kBarrier,
  kAllGather,
  kBroadcast,
  kReduceScatter,
  kAllReduce,
  kAllocate,    ///< a shared region (HostMemory::allocate)
  kForward,     ///< an outermost forward begins
  kPublished,   ///< every rank has published its shards
  kUnshard,     ///< an explicit unshard() outside a forward
  kGradients,   ///< a unit's gradients are ready
  kBackwardEnd, ///< a backward has ended
  kSplit,       ///< a sub-group is made
  kFullyShard,  ///< parameters are about to be sharded
};

std::string_view name_of(Meeting meeting);

/// One rank's side of a meeting; equal on every rank.
struct Request {
  Meeting meeting = Meeting::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool grad_enabled = false; ///< kForward: the grad mode
  std::int32_t root = 0;     ///< kBroadcast: the source rank
  std::uint32_t tree = 0;    ///< which sharded model it is for; 0: none
  std::int64_t numel = 0;    ///< elements over all ranks
  /// Whom it is for: the unit, parameter or caller; truncated to 119 bytes.
  std::string subject;

  /// "reduce_scatter(sum, float32, 1024 elements) for unit 'layers.0'".
  std::string describe() const;
};

/// A collective under way. wait() may be called more than once, from the thread
/// that uses the communicator; it throws what the collective threw. Buffers
/// stay the caller's and must live until then. Dropping it without wait() loses
/// what it threw, and leaves open whether the output is written; the collective
/// still takes part, so that no rank waits for it in vain. The buffers are the
/// caller's again when the destructor returns, which copies the input for that,
/// or blocks as wait() does.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};

/// Counts since the communicator was made; used by tests and by metrics.
struct CommCounters {
  std::int64_t num_meetings = 0;
  std::int64_t num_all_gathers = 0;
  std::int64_t num_reduce_scatters = 0;
  std::int64_t num_all_reduces = 0;
  std::int64_t num_broadcasts = 0;
  /// Payload bytes that left this rank for others over the backend (0 for a
  /// world of one; staging copies inside a host count).
  std::int64_t bytes_sent = 0;
  std::chrono::nanoseconds waited{0}; ///< blocked in meetings
};

/// What one rank brings to a gather: `bytes` at byte `offset` of the buffer.
struct GatherPiece {
  int rank = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "self", "inproc", "shm" or "gloo".
  std::string_view backend() const { return backend_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const CommCounters& counters() const { return counters_; }

  /// [collective] Rank r's `counts[r]` elements at `input` go to
  /// `output + sum(counts[0..r))` on every rank. counts.size() == size();
  /// counts may be 0 and uneven and are equal on all ranks. `input` may be the
  /// rank's own place in `output`. Every dtype.
  std::shared_ptr<Work> all_gather(
      const void* input,
      void* output,
      std::span<const std::int64_t> counts,
      DType dtype,
      std::string_view subject);

  /// [collective] Each rank has written its own pieces of `buffer`; afterwards
  /// all ranks have all of them, at the same places. `pieces` are equal on all
  /// ranks, in any order, and do not overlap.
  std::shared_ptr<Work> all_gather_in_place(
      void* buffer,
      std::span<const GatherPiece> pieces,
      std::string_view subject);

  /// [collective] `input` holds sum(counts) elements of `input_dtype` on every
  /// rank; rank r receives the reduction of its counts[r] elements in
  /// `output_dtype` (which must be the input's dtype or float32; kMax: the
  /// input's). kSum and kAvg: float32, float64, bfloat16, float16, and kSum of
  /// int64; kMax: float32, int64. Anything else throws UsageError naming dtype
  /// and operation, on every rank, before data moves.
  std::shared_ptr<Work> reduce_scatter(
      const void* input,
      DType input_dtype,
      void* output,
      DType output_dtype,
      std::span<const std::int64_t> counts,
      ReduceOp op,
      std::string_view subject);

  /// [collective] In place; dtypes and operations as for reduce_scatter.
  void all_reduce(
      void* data,
      std::int64_t numel,
      DType dtype,
      ReduceOp op,
      std::string_view subject);

  /// [collective] Every dtype; `root` in [0, size()).
  void broadcast(
      void* data,
      std::int64_t numel,
      DType dtype,
      int root,
      std::string_view subject);

  /// [collective] Returns once every rank has come with an equal request.
  virtual void meet(const Request& request) = 0;

  void barrier(std::string_view subject);

  /// Tells the other ranks that this one cannot go on: the first call in which
  /// they wait for something that this rank has not come to throws PeerError
  /// with `what`; what it has come to before ends well. Never blocks and never
  /// throws.
  /// Starts a new epoch here; the ranks that throw PeerError enter it too, so
  /// that all may use the group again. When several ranks fail in the same
  /// epoch, the first one's text is everybody's.
  virtual void fail(std::string_view what) noexcept = 0;

  /// Failures that this rank has lived through, its own and others'. A caller
  /// that catches an exception compares it with the value before, to tell a
  /// local failure (equal: call fail) from one that the others know of.
  virtual std::uint64_t epoch() const = 0;

  /// Memory shared by all ranks of the group, or null if they do not share one
  /// host (or the backend cannot). Equal on every rank. Lives as long as this.
  virtual HostMemory* host_memory() { return nullptr; }

  /// Whether buffers may lie on another device than the CPU.
  virtual bool serves_devices() const { return false; }

 protected:
  /// A call with data, its arguments checked and counted. Shapes are of this
  /// rank; all_reduce and broadcast are in place, and so is all_gather unless
  /// it has an input: then there is one piece a rank, in rank order, and this
  /// rank's is there.
  struct Collective {
    const Request& request; ///< which call, in `request.meeting`
    /// What else must be equal on all ranks: of reduce_scatter its elements by
    /// rank, of all_gather the same, or rank, offset and bytes of each piece.
    std::span<const std::int64_t> layout = {};
    std::span<const GatherPiece> pieces = {}; ///< of all_gather
    const std::byte* input = nullptr;
    std::size_t input_bytes = 0;
    std::byte* output = nullptr;
    std::size_t output_bytes = 0;
    DType output_dtype = DType::kUInt8;
  };

  Communicator(
      int rank,
      int size,
      std::string backend,
      std::chrono::milliseconds timeout);

  CommCounters counters_;

 private:
  /// Compares the requests and moves the data: what a backend is. `collective`
  /// ends with the call, the memory that it points to lives until the Work's
  /// wait() has returned. Counts its meetings and bytes.
  virtual std::shared_ptr<Work> start(const Collective& collective) = 0;

  int rank_;
  int size_;
  std::string backend_;
  std::chrono::milliseconds timeout_;
};

} // namespace fsdp
