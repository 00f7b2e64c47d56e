#pragma once
// Collectives of ranks on one host, over staging memory that all of them map.
// The same for self, inproc and shm.
//
// Each rank has two staging buffers and fills them in turn. One round is: write
// the own buffer, come together, read the others'. Buffer k % 2 is written
// again in round k + 2, after the ranks came together in round k + 1, hence
// after all of them have read round k; in a new epoch, after all have entered
// it. The meeting that compares the requests is the first round's: a small
// collective costs one.
//
// Bytes that a rank copies into staging, of N bytes over W ranks:
//   all_gather N/W, broadcast N (the root), reduce_scatter N (W-1)/W,
//   all_reduce N up to 32 KiB, above it N (W-1)/W and then N/W.

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host_group.h"
#include "comm/host/host_link.h"
#include "comm/host_memory.h"

namespace fsdp::host {

class HostCommunicator final : public Communicator, public HostMemory {
 public:
  /// `control`: a region of ControlLayout::bytes(size) that all ranks map.
  HostCommunicator(
      int rank,
      int size,
      std::string backend,
      std::chrono::milliseconds timeout,
      std::shared_ptr<SharedRegion> control,
      std::unique_ptr<HostLink> link);

  void meet(const Request& request) override;
  void fail(std::string_view what) noexcept override;
  std::uint64_t epoch() const override;
  HostMemory* host_memory() override { return this; }

  std::shared_ptr<SharedRegion> allocate(
      std::size_t bytes, std::string_view label) override;
  std::uint64_t post(const Request& request) override;
  void wait_post_slot() override;
  void await(std::uint64_t number) override;
  void consume(std::uint64_t number) override;

 private:
  // A collective under way.
  struct Call {
    WireRequest request;
    bool has_met = false;
  };
  struct Piece {
    std::int64_t begin;
    std::int64_t length;
  };

  std::shared_ptr<Work> start(const Collective& collective) override;
  void all_gather_staged(Call& call, const Collective& collective);
  void reduce_scatter_staged(Call& call, const Collective& collective);
  void all_reduce_staged(Call& call, const Collective& collective);
  void broadcast_staged(Call& call, const Collective& collective);

  template <class Write>
  std::uint64_t exchange(Call& call, Write write);
  const std::byte* buffer_of(int rank, std::uint64_t round) const;
  void copy_in(std::byte* to, const void* from, std::size_t bytes);
  void reduce_piece(
      const Call& call,
      std::uint64_t round,
      std::size_t offset,
      const void* own,
      void* output,
      DType output_dtype,
      std::int64_t numel);
  void all_reduce_small(Call& call, std::byte* data, std::int64_t numel);
  void all_reduce_span(Call& call, std::byte* data, std::int64_t numel);
  std::int64_t piece_numel(std::size_t element_bytes) const;

  HostGroup group_;
  std::uint64_t round_ = 0; // rounds of the epoch `round_epoch_`
  std::uint64_t round_epoch_ = 0;
  std::vector<const void*> inputs_; // scratch of reduce_piece, by rank
};

} // namespace fsdp::host
