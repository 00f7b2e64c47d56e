#pragma once
// `fsdp train` as real processes, under `fsdp run` or alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace fsdp::testing {

using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;

class TrainTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  /// Some text to train on.
  std::string text_file() const {
    std::string text;
    for (int i = 0; text.size() < 20'000; ++i) {
      text += "line " + std::to_string(i * i % 97) + "\n";
    }
    return write("text.txt", text);
  }

  static Arguments alone(const Arguments& options) {
    Arguments args{FSDP_PROGRAM, "train"};
    args.insert(args.end(), options.begin(), options.end());
    return args;
  }

  static Arguments on_ranks(int size, const Arguments& options) {
    Arguments args{FSDP_PROGRAM, "run", "-n", std::to_string(size), "--"};
    const Arguments train = alone(options);
    args.insert(args.end(), train.begin(), train.end());
    return args;
  }

  static ProcessResult run(
      const Arguments& args, std::chrono::milliseconds timeout = 120s) {
    return run_process(args, {}, timeout);
  }

  /// One object per line.
  static std::vector<nlohmann::json> read_log(const std::string& file) {
    std::vector<nlohmann::json> objects;
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) {
      objects.push_back(nlohmann::json::parse(line));
    }
    return objects;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

} // namespace fsdp::testing
