#include "launch/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "launch/run_job.h"

namespace fsdp::detail {

namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) {
    all.push_back(const_cast<char*>(text.c_str()));
  }
  all.push_back(nullptr);
  return all;
}

/// In the child, between fork and exec: no allocation, no locks.
void become_rank(const Job& job, bool first, pid_t guardian, int out, int err) {
  setpgid(0, job.direct ? job.launcher_group : 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != guardian) { // it died before the line above
    _exit(1);
  }
  for (const int signal :
       {SIGINT,
        SIGTERM,
        SIGPIPE,
        SIGXFSZ,
        SIGTSTP,
        SIGTTIN,
        SIGTTOU,
        SIGCHLD}) {
    ::signal(signal, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &job.signal_mask, nullptr);
  if (first && job.listener) {
    fcntl(job.listener.get(), F_SETFD, 0);
  }
  if (job.direct) {
    return;
  }
  if (!first || isatty(STDIN_FILENO)) {
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  }
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
}

} // namespace

RankProcess start_rank(const Job& job, std::size_t index) {
  const RankPlan& plan = job.ranks[index];
  const auto argv = pointers(job.arguments);
  const auto envp = pointers(plan.environment);
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe(); // closed by a successful exec
  RankProcess process;
  process.rank = plan.rank;
  const pid_t guardian = getpid();
  process.pid = fork();
  if (process.pid < 0) {
    throw Error(
        "cannot start rank " + std::to_string(plan.rank) + ": " +
        std::strerror(errno));
  }
  if (process.pid == 0) {
    become_rank(job, index == 0, guardian, out.write.get(), err.write.get());
    execve(job.program.c_str(), argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t sent =
        write(failure.write.get(), &error, sizeof(error));
    _exit(127);
  }
  failure.write.reset();
  int error = 0;
  if (read(failure.read.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(process.pid, nullptr, 0);
    throw ProgramError(
        "cannot run \"" + job.program + "\": " + std::strerror(error),
        error == ENOENT ? 127 : 126);
  }
  for (const UniqueFd* end : {&out.read, &err.read}) {
    fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  process.output = {std::move(out.read), std::move(err.read)};
  return process;
}

} // namespace fsdp::detail
