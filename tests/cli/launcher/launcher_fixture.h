#pragma once
// What every test of the launcher needs: the command line, and the check that
// nothing stays behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/process.h"

namespace fsdp::testing {

using namespace std::chrono_literals;

/// `fsdp run <options> -- rank_program <actions>`
inline std::vector<std::string> fsdp_run(
    const std::vector<std::string>& options,
    const std::vector<std::string>& actions) {
  std::vector<std::string> args{FSDP_PROGRAM, "run"};
  args.insert(args.end(), options.begin(), options.end());
  args.insert(args.end(), {"--", FSDP_RANK_PROGRAM});
  args.insert(args.end(), actions.begin(), actions.end());
  return args;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

/// Lines of `text` that begin with `start`, without it.
inline std::vector<std::string> lines_after(
    const std::string& start, const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(text))
    if (line.starts_with(start))
      found.push_back(line.substr(start.size()));
  return found;
}

/// Text between `start` and the next blank.
inline std::string word_after(
    const std::string& start, const std::string& text) {
  const size_t at = text.find(start);
  if (at == std::string::npos)
    return "";
  const size_t begin = at + start.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

class LauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("fsdp_launcher_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override {
    children_.clear();
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(wait_until(
        [&] {
          for (const std::string& name : shared_memory_files())
            if (!shared_before_.contains(name))
              return false;
          return true;
        },
        10s))
        << "new files stay in /dev/shm";
  }

  /// Runs to the end and checks that no process is left at that moment.
  ProcessResult run(
      std::vector<std::string> args,
      ProcessOptions options = {},
      Milliseconds timeout = 30s) {
    ChildProcess& child = start(std::move(args), std::move(options));
    return finish(child, timeout);
  }

  ChildProcess& start(
      std::vector<std::string> args, ProcessOptions options = {}) {
    children_.push_back(
        std::make_unique<ChildProcess>(std::move(args), std::move(options)));
    return *children_.back();
  }

  static ProcessResult finish(ChildProcess& child, Milliseconds timeout = 30s) {
    const ProcessResult result = child.wait(timeout);
    EXPECT_FALSE(result.timed_out) << result.err;
    EXPECT_THAT(child.survivors(), ::testing::IsEmpty());
    const std::string port = word_after("MASTER_PORT=", result.out);
    if (!port.empty()) {
      EXPECT_FALSE(port_is_listening(std::stoi(port)));
    }
    return result;
  }

  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
  std::set<std::string> shared_before_ = shared_memory_files();
  std::vector<std::unique_ptr<ChildProcess>> children_;
};

} // namespace fsdp::testing
