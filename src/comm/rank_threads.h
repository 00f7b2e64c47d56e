#pragma once
// Ranks as threads of one process.

#include <functional>

namespace fsdp {

/// Runs body(rank) on `size` threads, and rethrows what one of them threw: a
/// rank that failed by itself goes before one that was told of it (PeerError,
/// PeerDiedError), whoever unwound faster.
void run_on_threads(int size, const std::function<void(int rank)>& body);

} // namespace fsdp
