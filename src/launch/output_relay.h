#pragma once
// Takes what the ranks write and passes it on line by line.

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/unique_fd.h"

namespace fsdp::detail {

enum class Stream { kOut, kErr };

/// Whole lines, each behind "[rank r] ", go to the launcher's own stdout and
/// stderr; raw bytes to the log of the rank. A line over 64 KiB is passed on in
/// pieces. On a terminal the first rank may keep a live line: text that ends
/// with, or begins with, a carriage return is drawn below the other lines, at
/// most as wide as the terminal; elsewhere carriage returns pass unchanged.
/// Nothing blocks: text waits here until `write_some` finds room for it.
class OutputRelay {
 public:
  /// `logs` is empty or has one descriptor for each rank.
  OutputRelay(const std::vector<int>& ranks, std::vector<UniqueFd> logs);

  /// `index` counts the ranks of this node.
  void take(std::size_t index, Stream stream, std::string_view bytes);
  /// The rank ended: an unfinished last line is passed on.
  void finish(std::size_t index);
  /// A message of the launcher itself, for stderr.
  void say(std::string_view line);

  /// Last lines of the rank, stdout and stderr as they came.
  const std::deque<std::string>& last_lines(std::size_t index) const;

  bool has_waiting(Stream stream) const;
  /// True while so much waits that the ranks had better be slowed down.
  bool is_congested() const;
  /// Writes once; call it when poll reports room. Returns 0, or the errno once
  /// the stream takes no more (EPIPE: nobody reads it): what waits is dropped.
  int write_some(Stream stream);

 private:
  struct Rank {
    int number;
    std::string prefix;
    UniqueFd log;
    std::array<std::string, 2> partial;
    std::deque<std::string> last_lines;
  };

  struct Queue {
    std::string text;
    std::size_t done = 0;  ///< written already
    std::size_t chunk = 0; ///< most bytes of one write

    std::size_t waiting() const { return text.size() - done; }
  };

  void emit(Rank& rank, Stream stream, std::string_view line);
  static void remember(Rank& rank, std::string_view line);
  void append(Stream stream, std::string_view text);
  void update_live_line(Rank& rank);
  void log(Rank& rank, std::string_view bytes);

  std::vector<Rank> ranks_;
  std::array<Queue, 2> queues_;
  bool out_is_terminal_;
  bool one_terminal_;     ///< stdout and stderr are the same one
  std::string live_line_; ///< drawn now
};

} // namespace fsdp::detail
