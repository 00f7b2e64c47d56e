#pragma once
// One call of a Gloo communicator, from the thread that issues it to the worker
// that carries it out.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/wire_request.h"

namespace fsdp {

class PeerExchange;

struct Operation {
  // Set by the issuing thread.
  WireRequest request;
  std::vector<std::int64_t> counts; ///< of reduce_scatter: elements by rank
  std::vector<GatherPiece> pieces;  ///< of all_gather
  DType output_dtype = DType::kUInt8;
  const std::byte* input = nullptr;
  std::size_t input_bytes = 0;
  std::byte* output = nullptr;
  std::size_t output_bytes = 0;
  bool has_data = false;   ///< not a mere meeting
  bool is_failure = false; ///< tells the peers `failure_line`, nothing else
  std::string failure_line;
  std::chrono::system_clock::time_point failed_at;

  // Guarded by GlooWorker's mutex.
  enum class State { kQueued, kMoving, kDone };
  State state = State::kQueued;
  std::uint64_t epoch = 0;       ///< in which it was issued
  std::uint64_t epoch_after = 0; ///< once done with an error
  std::exception_ptr error;
  std::unique_ptr<std::byte[]> own_memory; ///< if the caller's went away
};

/// What move_data sends to peers in a group of `size`.
std::size_t bytes_sent(const Operation& operation, int rank, int size);

/// Moves and reduces the operation's data; all ranks have asked for the same.
void move_data(Operation& operation, PeerExchange& exchange);

} // namespace fsdp
