#pragma once
// The texts that every backend words alike. See docs/errors.md.

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// "5 s" or "1500 ms".
std::string time_text(std::chrono::milliseconds time);

/// "[rank 0] ".
std::string rank_prefix(int rank);

/// "rank 2" or "ranks 1, 2 and 3".
std::string name_ranks(const std::vector<int>& ranks);

/// `text` without the rank_prefix that it may begin with.
std::string_view without_rank_prefix(int rank, std::string_view text);

/// One line, without the "[rank r] " of its own origin, of at most `max_bytes`.
std::string failure_line(
    int origin, std::string_view what, std::size_t max_bytes);

/// PeerError of `rank`, from a failure_line of `origin`.
std::string peer_failed_text(int rank, int origin, std::string_view line);

/// TimeoutError: `missing` had not come to `what`.
std::string timeout_text(
    int rank,
    std::chrono::milliseconds timeout,
    std::string_view what,
    const std::vector<int>& missing);

/// PeerDiedError: `fate` is what is known of `peer`, e.g. "has exited".
std::string peer_died_text(
    int rank, int peer, std::string_view fate, std::string_view what);

/// TimeoutError of a store that has waited for `what`.
std::string store_timeout_text(
    std::chrono::milliseconds timeout, std::string_view what);

} // namespace fsdp
