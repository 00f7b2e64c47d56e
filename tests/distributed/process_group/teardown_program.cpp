// Programs that end in every way: `teardown_program BACKEND WAY RUNS`. Each run
// is a job of two ranks, forked before any thread is there, which ends as WAY
// says. Prints each rank whose end is not as expected; exit status 0 if none.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fsdp/process_group.h"

namespace {

using fsdp::DType;
using fsdp::ProcessGroup;

// What programs keep for their whole life. The vectors are the buffers of calls
// that nobody waits for.
std::optional<ProcessGroup> static_group;
std::shared_ptr<fsdp::Work> static_work;
std::vector<float> static_data(1 << 20);

struct Way {
  int exit_code;             ///< as a shell shows it
  int (*body)(ProcessGroup); ///< what main does, and returns
};

std::shared_ptr<fsdp::Work> gather(ProcessGroup& group, float* data) {
  const std::array<std::int64_t, 2> counts{1 << 19, 1 << 19};
  return group.communicator().all_gather(
      data + group.rank() * counts[0],
      data,
      counts,
      DType::kFloat32,
      "weights");
}

std::map<std::string, Way> ways_with_every_call_over() {
  return {
      {"return",
       {0,
        [](ProcessGroup group) {
          gather(group, static_data.data())->wait();
          return 0;
        }}},
      {"exit",
       {0,
        [](ProcessGroup group) -> int {
          gather(group, static_data.data())->wait();
          exit(0);
        }}},
      {"return_an_error",
       {3,
        [](ProcessGroup group) {
          group.barrier("the last step");
          return 3;
        }}},
      {"throw_out_of_main",
       {128 + SIGABRT,
        [](ProcessGroup group) -> int {
          group.barrier("the last step");
          throw std::runtime_error("as intended");
        }}},
  };
}

std::map<std::string, Way> ways_amid_a_call() {
  return {
      {"return_amid_a_call",
       {0,
        [](ProcessGroup group) {
          std::vector<float> local(1 << 20);
          const auto work = gather(group, local.data());
          return 0; // frees the buffers of the call under way
        }}},
      {"exit_amid_a_call",
       {0,
        [](ProcessGroup group) -> int {
          const auto work = gather(group, static_data.data());
          exit(0);
        }}},
      {"return_amid_a_call_of_one_rank",
       {0,
        [](ProcessGroup group) {
          if (group.rank() == 0) {
            gather(group, static_data.data());
          }
          return 0;
        }}},
      {"exit_amid_a_call_of_one_rank",
       {0,
        [](ProcessGroup group) -> int {
          if (group.rank() == 1) {
            static_work = gather(group, static_data.data());
          }
          exit(0);
        }}},
  };
}

std::map<std::string, Way> ways_with_statics_and_failures() {
  return {
      {"return_with_a_static_group",
       {0,
        [](ProcessGroup group) {
          static_group = group;
          static_work = gather(group, static_data.data());
          static_work->wait();
          return 0;
        }}},
      {"exit_amid_a_call_of_a_static_group",
       {0,
        [](ProcessGroup group) -> int {
          static_group = group;
          static_work = gather(group, static_data.data());
          exit(0);
        }}},
      {"exit_with_a_static_made_after",
       {0,
        [](ProcessGroup group) -> int {
          static const ProcessGroup later = group;
          later.barrier("the last step");
          exit(0);
        }}},
      {"leave_after_a_failure",
       {3,
        [](ProcessGroup group) {
          group.communicator().fail("as intended");
          return 3;
        }}},
  };
}

const std::map<std::string, Way>& ways() {
  static const std::map<std::string, Way> all = [] {
    auto ways = ways_with_every_call_over();
    ways.merge(ways_amid_a_call());
    ways.merge(ways_with_statics_and_failures());
    return ways;
  }();
  return all;
}

/// A listening socket, as `fsdp run` hands down to rank 0.
int listen_anywhere(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, any, size) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, any, &size) != 0) {
    std::cerr << "no port: " << std::strerror(errno) << std::endl;
    exit(2);
  }
  port = ntohs(address.sin_port);
  return fd;
}

void set_environment(int rank, int port, int listener) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("FSDP_MASTER_LISTEN_FD", std::to_string(listener).c_str(), 1);
}

/// Exit code as a shell shows it.
int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

} // namespace

int main(int, char** argv) {
  const std::string backend = argv[1];
  const Way way = ways().at(argv[2]);
  const int num_runs = std::stoi(argv[3]);
  const rlimit no_core_file{0, 0};
  setrlimit(RLIMIT_CORE, &no_core_file);

  int num_bad = 0;
  for (int run = 0; run < num_runs; ++run) {
    int port = 0;
    const int listener = listen_anywhere(port);
    std::array<pid_t, 2> pids{};
    for (int rank = 0; rank < 2; ++rank) {
      pids[static_cast<std::size_t>(rank)] = fork();
      if (pids[static_cast<std::size_t>(rank)] == 0) {
        // From here on this is the main() of a rank.
        set_environment(rank, port, listener);
        alarm(30);
        return way.body(fsdp::init_process_group(
            {.backend = backend, .timeout = std::chrono::seconds(20)}));
      }
    }
    close(listener);
    for (int rank = 0; rank < 2; ++rank) {
      const int code = wait_for(pids[static_cast<std::size_t>(rank)]);
      if (code != way.exit_code) {
        ++num_bad;
        std::cout << "run " << run << " rank " << rank << " ended with " << code
                  << " instead of " << way.exit_code << std::endl;
      }
    }
  }
  return num_bad == 0 ? 0 : 1;
}
