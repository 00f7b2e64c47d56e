#pragma once
// Joining the job: who am I, who are the others, and sub-groups of them.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/export.h"
#include "fsdp/reduce_op.h"

namespace at {
class Tensor;
}

namespace fsdp {

class Communicator;

struct InitOptions {
  /// "auto", "self", "inproc", "shm" or "gloo". auto: self for a world of one,
  /// shm if all ranks are on one host, gloo otherwise.
  std::string backend = "auto";
  /// Deadline of every wait of the group.
  std::chrono::milliseconds timeout{300'000};
  /// Overrides the launcher's variables; all three or none.
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
  std::optional<std::string> master = std::nullopt; ///< "address:port"
};

/// The ranks of a job, or some of them. Copies are handles of one group. A rank
/// uses its handles from one thread at a time.
class FSDP_API ProcessGroup {
 public:
  int rank() const; ///< in this group
  int size() const;
  /// Ranks of the members in the world, ascending.
  const std::vector<int>& world_ranks() const;

  // For values of the program's own: a loss to log, a flag, tokens to start
  // with. Every rank of the group calls them in the same order, with tensors of
  // one shape and dtype; a difference throws MismatchError on every rank. On
  // the CPU; any strides.

  /// In place: the reduction of all ranks' tensors, in rank order. kSum and
  /// kAvg of floating types (kAvg rounds once), kSum of int64, kMax of float32
  /// and int64; anything else throws UsageError on every rank.
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) const;
  /// In place: rank `src`'s tensor. Every dtype.
  void broadcast(const at::Tensor& tensor, int src) const;
  /// Returns once every rank has come. `subject` is named when one does not.
  void barrier(std::string_view subject = "barrier") const;

  /// [collective over this group] The sub-group of the members `ranks` (ranks
  /// in this group, ascending, without duplicates) that holds this rank. Every
  /// member calls it; disjoint sub-groups may be made by one call each side,
  /// e.g. the rows of a mesh. `name` is used in messages and must be equal
  /// within a sub-group. Throws UsageError if this rank is not in `ranks`.
  ProcessGroup split(const std::vector<int>& ranks, std::string name) const;

  /// For the library's own parts: what it returns is not public.
  Communicator& communicator() const;

  struct Impl; // for init_process_group and split alone
  explicit ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

/// [collective over the job] Joins the job described by the environment of
/// `fsdp run`, torchrun, mpirun or srun (or by `options`); without any of them
/// the world is this process alone. Throws ConfigError for a bad environment
/// (rank out of range, port in use, no address) and for options that do not
/// fit, TimeoutError naming the ranks that did not come.
FSDP_API ProcessGroup init_process_group(const InitOptions& options = {});

/// Runs `body` as `size` ranks that are threads of this process, over the named
/// backend ("inproc", "shm" or "gloo"), and waits for all of them. A body that
/// throws makes the others throw PeerError; then the exception of the rank that
/// failed first is thrown here. For tests and for programs without randomness
/// in the forward: the ranks share one random generator and one thread count.
/// Throws UsageError for a size below 1 and where the options name a rank, a
/// world size or a master.
FSDP_API void run_ranks(
    int size,
    const std::function<void(ProcessGroup)>& body,
    const InitOptions& options = {.backend = "inproc"});

} // namespace fsdp
