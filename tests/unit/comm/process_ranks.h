#pragma once
// Ranks as forked processes, for the tests of the shm backend. The test program
// must have no other thread when it forks.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "comm/error_text.h"
#include "comm/store.h"
#include "fsdp/error.h"
#include "support/temporary_folder.h"

namespace fsdp::testing {

inline std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder of one file for each key: works across processes.
class FolderStore final : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder)
      : folder_(std::move(folder)) {}

  void set(const std::string& key, std::string value) override {
    const auto unfinished =
        folder_ / (key + ".by." + std::to_string(getpid()) + ".tmp");
    std::ofstream(unfinished) << value;
    std::filesystem::rename(unfinished, folder_ / key);
  }

  std::string get(
      const std::string& key,
      std::chrono::milliseconds timeout,
      std::string_view what) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!std::filesystem::exists(folder_ / key)) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw TimeoutError(store_timeout_text(timeout, what));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return read_whole(folder_ / key);
  }

 private:
  std::filesystem::path folder_;
};

/// How a rank's process ended.
struct RankEnd {
  int signal = 0;     ///< that ended it, or 0
  int exit_code = -1; ///< -1 if a signal ended it
  std::string result; ///< what its body returned, or the error it threw
  std::string errors; ///< its standard error
};

/// What a rank's process runs; its result is handed to the test.
using ProcessBody = std::function<std::string(const BackendArgs& args)>;

inline RankEnd wait_for_rank(
    pid_t pid, const std::filesystem::path& folder, int rank) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) {
    throw std::runtime_error("lost a child");
  }
  const std::string name = std::to_string(rank);
  return {
      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
      .result = read_whole(folder / ("result." + name)),
      .errors = read_whole(folder / ("errors." + name))};
}

/// Runs `body` as `size` processes and waits for them. A process that hangs is
/// ended by SIGALRM after a minute.
inline std::vector<RankEnd> run_processes(
    int size,
    const ProcessBody& body,
    std::chrono::milliseconds timeout = std::chrono::milliseconds(20'000)) {
  const TemporaryFolder folder;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid != 0) {
      pids.push_back(pid);
      continue;
    }
    alarm(60);
    const std::string name = std::to_string(rank);
    if (std::freopen(
            (folder.path() / ("errors." + name)).c_str(), "w", stderr) ==
        nullptr) {
      _exit(98);
    }
    BackendArgs args;
    args.store = std::make_shared<FolderStore>(folder.path());
    args.rank = rank;
    args.size = size;
    args.timeout = timeout;
    args.group_name = "world";
    int exit_code = 0;
    std::string result;
    try {
      result = body(args);
    } catch (const std::exception& error) {
      result = error.what();
      exit_code = 99;
    }
    std::ofstream(folder.path() / ("result." + name)) << result;
    _exit(exit_code);
  }
  std::vector<RankEnd> ends;
  for (int rank = 0; rank < size; ++rank) {
    ends.push_back(wait_for_rank(
        pids[static_cast<std::size_t>(rank)], folder.path(), rank));
  }
  return ends;
}

} // namespace fsdp::testing
