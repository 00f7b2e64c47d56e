#include "launch/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/output_relay.h"
#include "launch/process_tree.h"
#include "launch/rank_process.h"
#include "launch/run_job.h"
#include "launch/verdict.h"

namespace fsdp::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSettle{50}; ///< for a first failure to show itself
constexpr milliseconds kSettleOnPeers{1000}; ///< while all blame another rank
constexpr milliseconds kGraceAfterFailure{2000};
constexpr milliseconds kGraceAfterSignal{30000}; ///< for a last checkpoint
constexpr milliseconds kKillTimeout{5000};
constexpr milliseconds kTick{10};

/// kRunning -> [kSettling ->] kStopping -> kKilling; any of them may be the
/// last, once no descendant is left.
enum class Phase { kRunning, kSettling, kStopping, kKilling };

class Guardian {
 public:
  Guardian(Job job, UniqueFd control)
      : job_(std::move(job)),
        control_(std::move(control)),
        relay_(rank_numbers(job_), std::move(job_.logs)) {
    sigset_t child{};
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    child_signals_.reset(signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  int run() {
    for (std::size_t i = 0; i < job_.ranks.size(); ++i) {
      ranks_.push_back(start_rank(job_, i));
    }
    // Rank 0 alone holds the port now, and frees it by ending.
    job_.listener.reset();
    while (!finished()) {
      wait_for_events();
      reap();
      advance();
    }
    return status();
  }

 private:
  static std::vector<int> rank_numbers(const Job& job) {
    std::vector<int> numbers;
    for (const RankPlan& plan : job.ranks) {
      numbers.push_back(plan.rank);
    }
    return numbers;
  }

  bool finished() {
    if (launcher_died_) {
      return no_children_ || gave_up_;
    }
    if (!no_children_ && !gave_up_) {
      return false;
    }
    if (!reported_) {
      report();
    }
    return abandon_output_ || (!relay_.has_waiting(Stream::kOut) &&
                               !relay_.has_waiting(Stream::kErr));
  }

  // Events.

  void wait_for_events() {
    std::vector<pollfd> fds{
        {control_.get(), POLLIN, 0}, {child_signals_.get(), POLLIN, 0}};
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      fds.push_back(
          {relay_.has_waiting(stream) ? fd_of(stream) : -1, POLLOUT, 0});
    }
    const bool listen = !relay_.is_congested();
    for (const RankProcess& rank : ranks_) {
      for (const UniqueFd& output : rank.output) {
        fds.push_back({listen ? output.get() : -1, POLLIN, 0});
      }
    }
    const bool timed = phase_ != Phase::kRunning;
    poll(fds.data(), fds.size(), timed ? static_cast<int>(kTick.count()) : -1);

    if (fds[0].revents != 0) {
      obey();
    }
    signalfd_siginfo info{};
    while (read(child_signals_.get(), &info, sizeof(info)) > 0) {
    }
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      if (fds[2 + static_cast<std::size_t>(stream)].revents != 0) {
        if (const int error = relay_.write_some(stream)) {
          output_is_broken(stream, error);
        }
      }
    }
    for (std::size_t i = 0; i < 2 * ranks_.size(); ++i) {
      if (fds[4 + i].revents != 0) {
        read_output(i / 2, static_cast<Stream>(i % 2));
      }
    }
  }

  static int fd_of(Stream stream) {
    return stream == Stream::kOut ? STDOUT_FILENO : STDERR_FILENO;
  }

  /// Reads once; false if there is nothing more now.
  bool read_output(std::size_t index, Stream stream) {
    UniqueFd& fd = ranks_[index].output[static_cast<std::size_t>(stream)];
    std::array<char, 65536> buffer;
    const ssize_t got = fd ? read(fd.get(), buffer.data(), buffer.size()) : -1;
    if (got > 0) {
      relay_.take(
          index, stream, {buffer.data(), static_cast<std::size_t>(got)});
    } else if (got == 0) {
      fd.reset();
    }
    return got > 0;
  }

  void drain(std::size_t index) {
    // What the rank itself wrote is in the pipe; a grandchild could go on.
    constexpr int kMostReads = 64;
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      for (int i = 0; i < kMostReads && read_output(index, stream); ++i) {
      }
    }
    relay_.finish(index);
  }

  void obey() {
    std::uint8_t command = 0;
    const ssize_t got = read(control_.get(), &command, 1);
    if (got == 0) {
      launcher_died_ = true;
      control_.reset();
      kill_all();
    } else if (got == 1) {
      abandon_output_ = no_children_;
      if (command == kKillNow || phase_ == Phase::kStopping) {
        kill_all();
      } else {
        forward(command);
      }
    }
  }

  void forward(int signal) {
    if (ended_by_signal_ == 0 && cause_ == std::nullopt) {
      ended_by_signal_ = signal;
    }
    for (const RankProcess& rank : ranks_) {
      if (!rank.ended) {
        kill(job_.direct ? rank.pid : -rank.pid, signal);
      }
    }
    stop(kGraceAfterSignal);
  }

  void output_is_broken(Stream stream, int error) {
    if (error == EPIPE) { // whoever read it is gone (`fsdp run ... | head`)
      if (phase_ < Phase::kStopping) {
        ended_by_signal_ = SIGPIPE;
        stop_all();
      }
      return;
    }
    if (!std::exchange(output_is_lost_, true)) {
      relay_.say(
          (stream == Stream::kOut ? "standard output" : "standard error") +
          std::string(" cannot be written: ") + std::strerror(error) +
          "; send it elsewhere");
    }
    if (phase_ == Phase::kRunning) { // a failure stops the ranks by itself
      stop_all();
    }
  }

  void reap() {
    while (true) {
      int raw = 0;
      const pid_t pid = waitpid(-1, &raw, WNOHANG);
      if (pid <= 0) {
        if (pid < 0 && errno == ECHILD) {
          all_are_gone();
        }
        return;
      }
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (ranks_[i].pid == pid) {
          note_end(i, raw);
        }
      }
    }
  }

  void note_end(std::size_t index, int raw) {
    drain(index);
    ranks_[index].ended = true;
    RankEnd end;
    end.rank = ranks_[index].rank;
    end.pid = ranks_[index].pid;
    end.signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0;
    end.exit_code = WIFEXITED(raw) ? WEXITSTATUS(raw) : 0;
    end.after_stop = phase_ >= Phase::kStopping;
    end.blames_peer = blames_peer(end, relay_.last_lines(index));
    ends_.push_back(end);
  }

  void all_are_gone() {
    if (std::exchange(no_children_, true)) {
      return;
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      drain(i);
    }
  }

  // Phases.

  void advance() {
    if (no_children_ || gave_up_) {
      return;
    }
    const auto now = Clock::now();
    const bool all_ended = ends_.size() == ranks_.size();
    switch (phase_) {
      case Phase::kRunning:
        if (first_failure(ends_)) {
          enter(Phase::kSettling, kSettleOnPeers);
        } else if (all_ended) { // and left processes behind
          stop_all();
        }
        break;
      case Phase::kSettling: {
        const RankEnd& first = ends_[*first_failure(ends_)];
        const bool settled = now >= entered_ + kSettle && !first.blames_peer;
        if (settled || all_ended || now >= deadline_) {
          stop_for_failure();
        }
        break;
      }
      case Phase::kStopping:
        if (all_ended && !swept_) {
          stop_all();
        } else if (now >= deadline_) {
          kill_all();
        }
        break;
      case Phase::kKilling:
        signal_descendants(SIGKILL);
        gave_up_ = now >= deadline_;
        break;
    }
  }

  void enter(Phase phase, milliseconds time) {
    phase_ = phase;
    entered_ = Clock::now();
    deadline_ = entered_ + time;
  }

  void stop_for_failure() {
    cause_ = first_failure(ends_);
    if (ends_.size() < ranks_.size()) {
      relay_.say(
          "rank " + std::to_string(ends_[*cause_].rank) +
          " failed, stopping the others");
    }
    stop_all();
  }

  static std::string headline(const RankEnd& end) {
    return "rank " + std::to_string(end.rank) + " (pid " +
           std::to_string(end.pid) + ") " +
           (end.blames_peer ? "gave up because of another rank: "
                            : "failed first: ") +
           describe_end(end);
  }

  void stop(milliseconds grace) {
    if (phase_ < Phase::kStopping) {
      enter(Phase::kStopping, grace);
    }
  }

  /// SIGTERM to whatever is left, ranks or not.
  void stop_all() {
    swept_ = true;
    signal_descendants(SIGTERM);
    enter(Phase::kStopping, kGraceAfterFailure);
  }

  void kill_all() {
    if (phase_ == Phase::kKilling) {
      return;
    }
    enter(Phase::kKilling, kKillTimeout);
    signal_descendants(SIGKILL);
  }

  // The end.

  int status() const {
    if (ended_by_signal_ != 0) {
      return 128 + ended_by_signal_;
    }
    return cause_ ? ends_[*cause_].status() : output_is_lost_ ? 1 : 0;
  }

  void report() {
    reported_ = true;
    if (!cause_ && ended_by_signal_ == 0) {
      cause_ = first_failure(ends_); // the last processes ended by themselves
      if (cause_ && output_is_lost_ && ends_[*cause_].after_stop) {
        cause_.reset(); // it was stopped for that
      }
    }
    if (cause_) {
      report_failure();
    } else if (ended_by_signal_ != 0) {
      relay_.say(
          "ended by " + signal_name(ended_by_signal_) +
          (phase_ == Phase::kKilling ? "; ranks that went on were killed"
                                     : ""));
    }
    if (gave_up_) {
      for (const pid_t pid : descendants()) {
        relay_.say(
            "pid " + std::to_string(pid) + " could not be killed and goes on");
      }
    }
  }

  void report_failure() {
    const RankEnd& first = ends_[*cause_];
    relay_.say(headline(first));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].rank != first.rank || relay_.last_lines(i).empty()) {
        continue;
      }
      const auto& lines = relay_.last_lines(i);
      relay_.say("its last lines of output:");
      for (const std::string& line : lines) {
        relay_.say("| " + line);
      }
    }
    std::vector<RankEnd> others = ends_;
    std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
      return a.rank < b.rank;
    });
    for (const RankEnd& end : others) {
      if (end.rank != first.rank) {
        relay_.say("rank " + std::to_string(end.rank) + ": " + fate(end));
      }
    }
  }

  static std::string fate(const RankEnd& end) {
    const std::string how = end.signal != 0
                                ? signal_name(end.signal)
                                : "exit code " + std::to_string(end.exit_code);
    if (end.after_stop) {
      // By itself (it caught SIGTERM, or was failing already), or by us.
      const bool is_ours = end.signal == SIGTERM || end.signal == SIGKILL;
      return (is_ours ? "stopped by the launcher ("
                      : "ended after the launcher's SIGTERM (") +
             how + ")";
    }
    return end.failed() ? "failed after it (" + how + ")"
                        : "had ended normally";
  }

  Job job_;
  UniqueFd control_;
  UniqueFd child_signals_;
  OutputRelay relay_;
  std::vector<RankProcess> ranks_;
  std::vector<RankEnd> ends_; ///< in the order in which they were seen
  Phase phase_ = Phase::kRunning;
  Clock::time_point entered_;
  Clock::time_point deadline_;
  std::optional<std::size_t> cause_; ///< index in ends_
  int ended_by_signal_ = 0;
  bool output_is_lost_ = false; ///< to an error that was told
  bool swept_ = false;
  bool launcher_died_ = false;
  bool no_children_ = false;
  bool gave_up_ = false;
  bool reported_ = false;
  bool abandon_output_ = false;
};

void complain(const std::string& text) {
  const std::string line = "fsdp run: " + text + "\n";
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

} // namespace

int guard_job(Job job, UniqueFd control) noexcept {
  // A name of its own: `killall fsdp` is then to the launcher alone.
  prctl(PR_SET_NAME, "fsdp-guardian", 0, 0, 0);
  // A group of its own: the terminal's signals are for the launcher.
  setpgid(0, 0);
  for (const int signal : {SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU}) {
    ::signal(signal, SIG_IGN);
  }
  become_subreaper();
  int status = 1;
  try {
    return Guardian(std::move(job), std::move(control)).run();
  } catch (const ProgramError& error) {
    complain(error.what());
    status = error.status;
  } catch (const std::exception& error) {
    complain(error.what());
  }
  kill_descendants(kKillTimeout);
  return status;
}

} // namespace fsdp::detail
