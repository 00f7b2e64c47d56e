#include "launch/output_relay.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace fsdp::detail {

namespace {

constexpr std::size_t kLongestLine = std::size_t{64} << 10;
constexpr std::size_t kCongestedAt = std::size_t{1} << 20;
constexpr std::size_t kLastLines = 20;
constexpr std::size_t kLongestLastLine = 2000;
constexpr std::string_view kEraseLine = "\r\x1b[K";

bool same_terminal(int a, int b) {
  struct stat first {};
  struct stat second {};
  return isatty(a) && isatty(b) && fstat(a, &first) == 0 &&
         fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
}

bool is_regular_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col > 1 ? size.ws_col : 80;
}

/// What a terminal would show of a text with carriage returns: the last piece
/// that is not empty.
std::string_view visible_piece(std::string_view text) {
  while (text.ends_with('\r')) {
    text.remove_suffix(1);
  }
  const std::size_t start = text.rfind('\r');
  return start == std::string_view::npos ? text : text.substr(start + 1);
}

int descriptor(Stream stream) {
  return stream == Stream::kOut ? STDOUT_FILENO : STDERR_FILENO;
}

} // namespace

OutputRelay::OutputRelay(
    const std::vector<int>& ranks, std::vector<UniqueFd> logs)
    : out_is_terminal_(isatty(STDOUT_FILENO)),
      one_terminal_(same_terminal(STDOUT_FILENO, STDERR_FILENO)) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Rank& rank = ranks_.emplace_back();
    rank.number = ranks[i];
    rank.prefix = "[rank " + std::to_string(ranks[i]) + "] ";
    if (i < logs.size()) {
      rank.log = std::move(logs[i]);
    }
  }
  // A pipe that poll calls writable takes PIPE_BUF bytes without blocking.
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    queues_[static_cast<std::size_t>(stream)].chunk =
        is_regular_file(descriptor(stream)) ? kCongestedAt : PIPE_BUF;
  }
}

void OutputRelay::take(
    std::size_t index, Stream stream, std::string_view bytes) {
  Rank& rank = ranks_[index];
  log(rank, bytes);
  std::string& partial = rank.partial[static_cast<std::size_t>(stream)];
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t room = kLongestLine - partial.size();
    const std::size_t length = std::min({end, bytes.size(), room});
    partial.append(bytes.substr(0, length));
    bytes.remove_prefix(length);
    if (length == end) {
      bytes.remove_prefix(1);
      emit(rank, stream, partial);
      partial.clear();
    } else if (partial.size() == kLongestLine) {
      emit(rank, stream, partial);
      partial.clear();
    }
  }
  if (index == 0 && out_is_terminal_) {
    update_live_line(rank);
  }
}

void OutputRelay::finish(std::size_t index) {
  Rank& rank = ranks_[index];
  for (const Stream stream : {Stream::kOut, Stream::kErr}) {
    std::string& partial = rank.partial[static_cast<std::size_t>(stream)];
    if (!partial.empty()) {
      emit(rank, stream, partial);
    }
    partial.clear();
  }
  if (index == 0 && out_is_terminal_) {
    update_live_line(rank);
  }
}

void OutputRelay::say(std::string_view line) {
  append(Stream::kErr, "fsdp run: " + std::string(line) + "\n");
}

const std::deque<std::string>& OutputRelay::last_lines(
    std::size_t index) const {
  return ranks_[index].last_lines;
}

void OutputRelay::emit(Rank& rank, Stream stream, std::string_view line) {
  if (out_is_terminal_) {
    line = visible_piece(line);
  }
  append(stream, rank.prefix + std::string(line) + "\n");
  remember(rank, line);
}

void OutputRelay::remember(Rank& rank, std::string_view line) {
  // A backtrace of LibTorch would push out the line that says what happened.
  const std::size_t text = line.find_first_not_of(' ');
  if (text != std::string_view::npos &&
      line.substr(text).starts_with("frame #")) {
    return;
  }
  rank.last_lines.emplace_back(line.substr(0, kLongestLastLine));
  if (rank.last_lines.size() > kLastLines) {
    rank.last_lines.pop_front();
  }
}

void OutputRelay::append(Stream stream, std::string_view text) {
  if (one_terminal_) {
    stream = Stream::kOut; // one queue keeps the order on the screen
  }
  std::string& queue = queues_[static_cast<std::size_t>(stream)].text;
  const bool live = !live_line_.empty() && stream == Stream::kOut;
  if (live) {
    queue += kEraseLine;
  }
  queue += text;
  if (live) {
    queue += live_line_;
  }
}

void OutputRelay::update_live_line(Rank& rank) {
  std::string& partial = rank.partial[static_cast<std::size_t>(Stream::kOut)];
  std::string wanted;
  if (partial.find('\r') != std::string::npos) {
    const bool ended = partial.back() == '\r';
    const std::string piece(visible_piece(partial));
    partial = "\r" + piece + (ended ? "\r" : ""); // what came before is gone
    wanted = (rank.prefix + piece).substr(0, terminal_columns() - 1);
  }
  if (wanted == live_line_) {
    return;
  }
  std::string& queue = queues_[static_cast<std::size_t>(Stream::kOut)].text;
  queue += kEraseLine;
  queue += wanted;
  live_line_ = wanted;
}

void OutputRelay::log(Rank& rank, std::string_view bytes) {
  while (rank.log && !bytes.empty()) {
    const ssize_t written = write(rank.log.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      say("the log of rank " + std::to_string(rank.number) +
          " ends here: " + std::strerror(errno));
      rank.log.reset();
    }
  }
}

bool OutputRelay::has_waiting(Stream stream) const {
  return queues_[static_cast<std::size_t>(stream)].waiting() > 0;
}

bool OutputRelay::is_congested() const {
  return queues_[0].waiting() + queues_[1].waiting() > kCongestedAt;
}

int OutputRelay::write_some(Stream stream) {
  Queue& queue = queues_[static_cast<std::size_t>(stream)];
  const ssize_t written = write(
      descriptor(stream),
      queue.text.data() + queue.done,
      std::min(queue.waiting(), queue.chunk));
  const int error =
      written < 0 && errno != EINTR && errno != EAGAIN ? errno : 0;
  if (written > 0) {
    queue.done += static_cast<std::size_t>(written);
  }
  if (error != 0 || queue.waiting() == 0) {
    queue.done = queue.text.size();
  }
  if (queue.done == queue.text.size() || queue.done > kCongestedAt) {
    queue.text.erase(0, std::exchange(queue.done, 0));
  }
  return error;
}

} // namespace fsdp::detail
