#include "comm/error_text.h"

namespace fsdp {

std::string time_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s"
                        : std::to_string(ms) + " ms";
}

std::string rank_prefix(int rank) {
  return "[rank " + std::to_string(rank) + "] ";
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) {
      text += i + 1 == ranks.size() ? " and " : ", ";
    }
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string_view without_rank_prefix(int rank, std::string_view text) {
  const std::string prefix = rank_prefix(rank);
  if (text.starts_with(prefix)) {
    text.remove_prefix(prefix.size());
  }
  return text;
}

std::string failure_line(
    int origin, std::string_view what, std::size_t max_bytes) {
  std::string line(without_rank_prefix(origin, what).substr(0, max_bytes));
  for (char& c : line) {
    if (c == '\n' || c == '\r') {
      c = ' ';
    }
  }
  return line;
}

std::string peer_failed_text(int rank, int origin, std::string_view line) {
  return rank_prefix(rank) + "rank " + std::to_string(origin) +
         " failed: " + std::string(line);
}

std::string timeout_text(
    int rank,
    std::chrono::milliseconds timeout,
    std::string_view what,
    const std::vector<int>& missing) {
  return rank_prefix(rank) + "timed out after " + time_text(timeout) + " in " +
         std::string(what) + ": " + name_ranks(missing) +
         " had not come; see what " + (missing.size() == 1 ? "it" : "they") +
         " did last, or raise the timeout, and start the job again";
}

std::string peer_died_text(
    int rank, int peer, std::string_view fate, std::string_view what) {
  return rank_prefix(rank) + "rank " + std::to_string(peer) + " " +
         std::string(fate) + ", and is waited for in " + std::string(what) +
         "; see its last output, and start the job again";
}

std::string store_timeout_text(
    std::chrono::milliseconds timeout, std::string_view what) {
  return "timed out after " + time_text(timeout) + " waiting for " +
         std::string(what) +
         "; see whether all ranks were started with the same address and port, "
         "or raise the timeout";
}

} // namespace fsdp
