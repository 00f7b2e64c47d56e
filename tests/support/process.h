#pragma once
// Real processes for tests: start one with its output caught, wait with a
// deadline, and see what it left behind. Linux only.
//
//   ChildProcess child({program, "--flag"}, {.env = {{"RANK", "0"}}});
//   ASSERT_TRUE(child.wait_for_output("ready", 5s));
//   child.send_signal(SIGKILL);
//   ProcessResult result = child.wait(5s);
//   EXPECT_EQ(result.exit_code, 137);
//   EXPECT_THAT(child.survivors(), IsEmpty());
//
// Every child and everything it starts carries the variable FSDP_TEST_MARK with
// a value of its own, by which survivors() finds processes whoever their parent
// is now. The destructor kills what is left.

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/process_list.h"

extern char** environ;

namespace fsdp::testing {

using Milliseconds = std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

struct ProcessResult {
  int exit_code = -1;      ///< as a shell shows it: 128 + signal for a signal
  int signal = 0;          ///< what killed it, 0 for a normal exit
  bool timed_out = false;  ///< it ran past the deadline and was killed
  Milliseconds elapsed{0}; ///< from the start to the end of the process
  std::string out;
  std::string err;
};

struct ProcessOptions {
  /// Added to the test's environment; nullopt removes a variable.
  std::map<std::string, std::optional<std::string>> env{};
  std::string working_dir{};
  /// stdin, stdout and stderr are a new terminal of 80 columns that the child
  /// controls. All it shows is caught as `out`; press() types on it.
  bool terminal = false;
  /// Runs in the child before exec; only async-signal-safe calls.
  void (*before_exec)() = nullptr;
};

/// Polls until `holds()`; false at the deadline.
template <typename Predicate>
bool wait_until(Predicate holds, Milliseconds timeout) {
  const auto deadline = SteadyClock::now() + timeout;
  while (!holds()) {
    if (SteadyClock::now() > deadline)
      return false;
    std::this_thread::sleep_for(Milliseconds(5));
  }
  return true;
}

class ChildProcess {
 public:
  /// args[0] is looked up in PATH if it has no slash. stdin is /dev/null.
  explicit ChildProcess(
      std::vector<std::string> args, ProcessOptions options = {})
      : start_(SteadyClock::now()) {
    static std::atomic<int> count{0};
    mark_ = "FSDP_TEST_MARK=" + std::to_string(getpid()) + "." +
            std::to_string(++count);
    Ends ends = options.terminal ? open_terminal() : open_pipes();
    std::vector<char*> argv;
    for (std::string& arg : args)
      argv.push_back(arg.data());
    argv.push_back(nullptr);
    std::vector<std::string> settings = environment(options);
    std::vector<char*> envp;
    for (std::string& setting : settings)
      envp.push_back(setting.data());
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      if (options.terminal) {
        setsid();
        ioctl(ends.child_out, TIOCSCTTY, 0);
      }
      dup2(ends.child_in, 0);
      dup2(ends.child_out, 1);
      dup2(ends.child_err, 2);
      if (!options.working_dir.empty() &&
          chdir(options.working_dir.c_str()) != 0)
        _exit(127);
      if (options.before_exec)
        options.before_exec();
      execvpe(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    for (const int fd : std::set{ends.child_in, ends.child_out, ends.child_err})
      close(fd);
    streams_ = {Stream{ends.out, {}}, Stream{ends.err, {}}};
    if (pid_ < 0)
      throw std::runtime_error("fork failed");
  }

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  ~ChildProcess() {
    if (!ended_)
      end(SIGKILL);
    for (const pid_t pid : survivors())
      kill(pid, SIGKILL);
    for (const Stream& stream : streams_)
      if (stream.fd >= 0)
        close(stream.fd);
  }

  pid_t pid() const { return pid_; }
  void send_signal(int signal) const { kill(pid_, signal); }
  void press(char key) const {
    if (write(streams_[0].fd, &key, 1) != 1)
      throw std::runtime_error("cannot type on the terminal");
  }
  /// What was caught so far.
  const std::string& out() const { return streams_[0].text; }
  const std::string& err() const { return streams_[1].text; }

  /// Until stdout or stderr holds `text`; false at the deadline or the end.
  bool wait_for_output(std::string_view text, Milliseconds timeout) {
    const auto deadline = SteadyClock::now() + timeout;
    const auto seen = [&] {
      return out().find(text) != std::string::npos ||
             err().find(text) != std::string::npos;
    };
    while (!seen()) {
      if (SteadyClock::now() > deadline || (!pump(Milliseconds(20)) && !seen()))
        return false;
    }
    return true;
  }

  /// Waits for the process itself and takes what it wrote (a descendant that
  /// still holds the pipes is not waited for). Past the deadline it is killed.
  ProcessResult wait(Milliseconds timeout) {
    const auto deadline = SteadyClock::now() + timeout;
    bool timed_out = false;
    while (!ended_) {
      pump(Milliseconds(10));
      poll_end();
      if (!ended_ && SteadyClock::now() > deadline) {
        timed_out = true;
        end(SIGKILL);
      }
    }
    while (pump(Milliseconds(0), /*only_ready=*/true)) {
    }
    ProcessResult result;
    result.timed_out = timed_out;
    result.signal = WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
    result.exit_code =
        result.signal ? 128 + result.signal : WEXITSTATUS(status_);
    result.elapsed = std::chrono::duration_cast<Milliseconds>(end_ - start_);
    result.out = out();
    result.err = err();
    return result;
  }

  /// Living processes that this one started, itself included.
  std::vector<pid_t> survivors() const {
    return processes_with_variable(mark_);
  }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
  };

  /// Descriptors of the test and of the child; closed on exec.
  struct Ends {
    int out = -1, err = -1;
    int child_in = -1, child_out = -1, child_err = -1;
  };

  static Ends open_pipes() {
    std::array<int, 2> out{}, err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("pipe2 failed");
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return {out[0], err[0], null, out[1], err[1]};
  }

  static Ends open_terminal() {
    int ours = -1, child = -1;
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    if (openpty(&ours, &child, nullptr, nullptr, &size) != 0)
      throw std::runtime_error("openpty failed");
    fcntl(ours, F_SETFD, FD_CLOEXEC);
    fcntl(child, F_SETFD, FD_CLOEXEC);
    return {ours, -1, child, child, child};
  }

  std::vector<std::string> environment(const ProcessOptions& options) const {
    std::vector<std::string> settings{mark_};
    for (char** entry = environ; *entry; ++entry) {
      const std::string setting = *entry;
      const std::string name = setting.substr(0, setting.find('='));
      if (name != "FSDP_TEST_MARK" && !options.env.contains(name))
        settings.push_back(setting);
    }
    for (const auto& [name, value] : options.env)
      if (value)
        settings.push_back(name + "=" + *value);
    return settings;
  }

  /// Reads what is there; false once both streams are at their end (or, with
  /// `only_ready`, have nothing now).
  bool pump(Milliseconds timeout, bool only_ready = false) {
    std::vector<pollfd> fds;
    for (const Stream& stream : streams_)
      fds.push_back({stream.fd, POLLIN, 0});
    const int ready =
        poll(fds.data(), fds.size(), static_cast<int>(timeout.count()));
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i].fd < 0 || fds[i].revents == 0)
        continue;
      std::array<char, 65536> buffer;
      const ssize_t got = read(streams_[i].fd, buffer.data(), buffer.size());
      if (got > 0) {
        streams_[i].text.append(buffer.data(), static_cast<size_t>(got));
      } else {
        close(streams_[i].fd);
        streams_[i].fd = -1;
      }
    }
    return only_ready ? ready > 0 : streams_[0].fd >= 0 || streams_[1].fd >= 0;
  }

  void poll_end() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) {
      ended_ = true;
      end_ = SteadyClock::now();
    }
  }

  void end(int signal) {
    kill(pid_, signal);
    waitpid(pid_, &status_, 0);
    ended_ = true;
    end_ = SteadyClock::now();
  }

  std::string mark_;
  pid_t pid_ = -1;
  std::array<Stream, 2> streams_;
  SteadyClock::time_point start_;
  SteadyClock::time_point end_;
  int status_ = 0;
  bool ended_ = false;
};

/// Starts, waits, returns what happened.
inline ProcessResult run_process(
    std::vector<std::string> args,
    ProcessOptions options = {},
    Milliseconds timeout = std::chrono::seconds(60)) {
  return ChildProcess(std::move(args), std::move(options)).wait(timeout);
}

} // namespace fsdp::testing
