#include "launch/run_job.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "launch/cpu_budget.h"
#include "launch/guardian.h"
#include "launch/job.h"
#include "launch/master_port.h"
#include "launch/process_tree.h"
#include "launch/verdict.h"

extern char** environ;

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using detail::Job;

constexpr int kLargestPort = 65535;

void check(const RunOptions& options) {
  const auto number = [](const char* flag, int value, const char* expected) {
    return std::string(flag) + " is " + std::to_string(value) + ": expected " +
           expected;
  };
  const std::string nodes = "--nnodes is " + std::to_string(options.num_nodes);
  if (options.num_ranks < 1 || options.num_ranks > kMostRanksOnNode) {
    throw ConfigError(
        number("-n", options.num_ranks, "1 to ") +
        std::to_string(kMostRanksOnNode) + " ranks on a node");
  }
  if (options.num_nodes < 1) {
    throw ConfigError(number("--nnodes", options.num_nodes, "at least 1 node"));
  }
  if (options.num_nodes > kMostNodes) {
    throw ConfigError(
        number("--nnodes", options.num_nodes, "at most ") +
        std::to_string(kMostNodes) + " nodes");
  }
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    throw ConfigError(
        number("--node-rank", options.node_rank, "0 to ") +
        std::to_string(options.num_nodes - 1) + ", as " + nodes);
  }
  if (options.num_nodes > 1 && !options.master_addr) {
    throw ConfigError(
        "--master-addr is missing: expected the address of node 0, the same "
        "on every node, as " +
        nodes);
  }
  if (options.num_nodes > 1 && !options.master_port) {
    throw ConfigError(
        "--master-port is missing: expected a free port of node 0, the same "
        "on every node, as " +
        nodes);
  }
  if (options.master_addr && options.master_addr->empty()) {
    throw ConfigError("--master-addr is empty: expected the address of node 0");
  }
  const int port = options.master_port.value_or(0);
  if (options.num_nodes > 1 && (port < 1 || port > kLargestPort)) {
    throw ConfigError(
        number("--master-port", port, "a port from 1 to 65535, as ") + nodes);
  }
  if (port < 0 || port > kLargestPort) {
    throw ConfigError(number(
        "--master-port", port, "a port up to 65535, or 0 for a free one"));
  }
  if (options.program.empty()) {
    throw ConfigError(
        "no program to run: expected fsdp run [options] -- program "
        "[arguments]");
  }
}

/// 0 if it can be executed, else an errno.
int why_not_executable(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return errno;
  }
  if (S_ISDIR(status.st_mode)) {
    return EISDIR;
  }
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

/// Path of the program, looked up in PATH if its name has no slash.
std::string find_program(const std::string& name) {
  std::string refused = name;
  int error = ENOENT;
  if (name.find('/') != std::string::npos) {
    error = why_not_executable(name);
    if (error == 0) {
      return name;
    }
  } else {
    const char* variable = std::getenv("PATH");
    std::string_view folders = variable ? variable : "/usr/bin:/bin";
    while (!name.empty() && !folders.empty()) {
      const std::string_view folder = folders.substr(0, folders.find(':'));
      folders.remove_prefix(std::min(folders.size(), folder.size() + 1));
      const fs::path path = fs::path(folder.empty() ? "." : folder) / name;
      const int problem = why_not_executable(path);
      if (problem == 0) {
        return path;
      }
      if (problem == EACCES) {
        refused = path;
        error = EACCES;
      }
    }
    if (error == ENOENT) {
      throw ProgramError(
          "cannot find the program \"" + name + "\" in PATH", 127);
    }
  }
  throw ProgramError(
      "cannot run \"" + refused + "\": " + std::strerror(error),
      error == ENOENT || error == ENOTDIR ? 127 : 126);
}

std::vector<UniqueFd> open_logs(const RunOptions& options) {
  std::vector<UniqueFd> logs;
  if (options.log_dir.empty()) {
    return logs;
  }
  std::error_code error;
  fs::create_directories(options.log_dir, error);
  for (int i = 0; i < options.num_ranks; ++i) {
    const int rank = options.node_rank * options.num_ranks + i;
    const fs::path path =
        fs::path(options.log_dir) / ("rank-" + std::to_string(rank) + ".log");
    logs.emplace_back(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!logs.back()) {
      throw ConfigError(
          "cannot write " + path.string() + ": " + std::strerror(errno) +
          ": choose another --log-dir");
    }
  }
  return logs;
}

using Settings = std::map<std::string, std::string>;

/// The caller's environment with the settings; an empty one is removed.
std::vector<std::string> environment_with(const Settings& settings) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    if (!settings.contains(std::string(text.substr(0, text.find('='))))) {
      all.emplace_back(text);
    }
  }
  for (const auto& [name, value] : settings) {
    if (!value.empty()) {
      all.push_back(name + "=" + value);
    }
  }
  return all;
}

/// Threads for each rank where the user leaves the choice to us.
std::string choose_threads(const RunOptions& options) {
  const int cores = detail::affinity_cores();
  const auto limit = detail::cgroup_cpu_limit();
  const int threads = detail::threads_per_rank(cores, limit, options.num_ranks);
  std::array<char, 32> usable{};
  std::snprintf(
      usable.data(),
      usable.size(),
      "%g",
      std::min<double>(cores, limit.value_or(cores)));
  std::fprintf(
      stderr,
      "fsdp run: OMP_NUM_THREADS=%d for each rank (ranks here: %d, usable "
      "cores: %s); set it to choose another\n",
      threads,
      options.num_ranks,
      usable.data());
  return std::to_string(threads);
}

std::vector<detail::RankPlan> plan_ranks(
    const RunOptions& options, int port, int listen_fd, bool direct) {
  Settings settings{
      {"FSDP_RUN", "1"},
      {"WORLD_SIZE", std::to_string(options.num_ranks * options.num_nodes)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.num_ranks)},
      {"MASTER_ADDR", options.master_addr.value_or("127.0.0.1")},
      {"MASTER_PORT", std::to_string(port)},
      // What a launcher around this one may have set for its own ranks.
      {"TORCHELASTIC_RUN_ID", ""},
      {"TORCHELASTIC_USE_AGENT_STORE", ""}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    settings["FSDP_DEFAULT_THREADS"] = settings["OMP_NUM_THREADS"] =
        choose_threads(options);
  }
  std::vector<detail::RankPlan> plans;
  for (int i = 0; i < options.num_ranks; ++i) {
    const int rank = options.node_rank * options.num_ranks + i;
    settings["RANK"] = std::to_string(rank);
    settings["LOCAL_RANK"] = std::to_string(i);
    settings["FSDP_MASTER_LISTEN_FD"] =
        rank == 0 ? std::to_string(listen_fd) : "";
    settings["FSDP_LIVE_LINE"] =
        i == 0 && !direct && isatty(STDOUT_FILENO) ? "1" : "";
    plans.push_back({rank, environment_with(settings)});
  }
  return plans;
}

Job prepare(const RunOptions& options) {
  check(options);
  Job job;
  job.program = find_program(options.program.front());
  job.arguments = options.program;
  int port = options.master_port.value_or(0);
  if (options.node_rank == 0) {
    MasterSocket listener = detail::listen_for_ranks(
        options.master_addr.value_or("127.0.0.1"), port);
    port = listener.port;
    job.listener = std::move(listener.fd);
  }
  job.logs = open_logs(options);
  job.direct = options.num_ranks * options.num_nodes == 1 &&
               options.log_dir.empty() && isatty(STDOUT_FILENO);
  job.launcher_group = getpgrp();
  job.ranks = plan_ranks(options, port, job.listener.get(), job.direct);
  return job;
}

/// Forwards signals to the guardian until it ends, then sees to it that nothing
/// is left.
class Launcher {
 public:
  explicit Launcher(sigset_t handled)
      : signals_(signalfd(-1, &handled, SFD_CLOEXEC)) {}

  int run(Job job) {
    // A process that was started before this program took its place.
    for (const pid_t pid : detail::descendants()) {
      not_ours_.insert(pid);
    }
    detail::become_subreaper();
    std::array<int, 2> control{};
    if (pipe2(control.data(), O_CLOEXEC) != 0) {
      throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
    }
    UniqueFd read_end(control[0]);
    control_.reset(control[1]);
    direct_ = job.direct;
    guardian_ = fork();
    if (guardian_ < 0) {
      throw Error(
          std::string("cannot start the guardian: ") + std::strerror(errno));
    }
    if (guardian_ == 0) {
      control_.reset();
      signals_.reset();
      _exit(detail::guard_job(std::move(job), std::move(read_end)));
    }
    job.listener.reset();
    job.logs.clear();
    read_end.reset();
    return wait_for_guardian();
  }

 private:
  using Clock = std::chrono::steady_clock;

  int wait_for_guardian() {
    while (true) {
      int raw = 0;
      if (waitpid(guardian_, &raw, WNOHANG) == guardian_) {
        return clean_up(raw);
      }
      signalfd_siginfo info{};
      if (read(signals_.get(), &info, sizeof(info)) == sizeof(info) &&
          info.ssi_signo != SIGCHLD) {
        pass_on(static_cast<int>(info.ssi_signo), info.ssi_code);
      }
    }
  }

  void pass_on(int signal, int code) {
    // One rank on the terminal got the terminal's signal itself.
    if (direct_ && code == SI_KERNEL) {
      return;
    }
    // `timeout` and others send a signal to the process and to its group.
    constexpr std::chrono::milliseconds kOneSignal{200};
    const auto now = Clock::now();
    if (num_signals_ > 0 && now < last_signal_ + kOneSignal) {
      return;
    }
    last_signal_ = now;
    if (++num_signals_ > 2) {
      kill(guardian_, SIGKILL);
      return;
    }
    const std::uint8_t command = num_signals_ == 1
                                     ? static_cast<std::uint8_t>(signal)
                                     : detail::kKillNow;
    [[maybe_unused]] const ssize_t sent = write(control_.get(), &command, 1);
  }

  int clean_up(int raw) {
    const auto left =
        detail::kill_descendants(std::chrono::seconds(5), not_ours_);
    for (const pid_t pid : left) {
      std::fprintf(
          stderr,
          "fsdp run: pid %d could not be killed and goes on\n",
          static_cast<int>(pid));
    }
    if (WIFEXITED(raw)) {
      return WEXITSTATUS(raw);
    }
    std::fprintf(
        stderr,
        "fsdp run: the guardian of the ranks was killed by %s; all ranks were "
        "ended\n",
        detail::signal_name(WTERMSIG(raw)).c_str());
    return 128 + WTERMSIG(raw);
  }

  UniqueFd signals_;
  UniqueFd control_;
  pid_t guardian_ = -1;
  bool direct_ = false;
  int num_signals_ = 0;
  Clock::time_point last_signal_;
  std::set<pid_t> not_ours_;
};

/// A closed stdin, stdout or stderr would let a pipe take its number.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) {
    close(fd);
  }
}

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

} // namespace

int run_job(const RunOptions& options) {
  open_standard_streams();
  // At the limit on file sizes a write is to fail like any other, here and in
  // the guardian.
  signal(SIGXFSZ, SIG_IGN);
  Job job = prepare(options);
  sigset_t handled{};
  sigemptyset(&handled);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    sigaddset(&handled, signal);
  }
  if (!is_ignored(SIGHUP)) { // nohup
    sigaddset(&handled, SIGHUP);
  }
  signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &handled, &job.signal_mask);
  return Launcher(handled).run(std::move(job));
}

} // namespace fsdp
