// A rank of our side of a comparison. Obeys the driver's commands until it
// hangs up:
//   run N   N steps, then one line of JSON: each step's time and loss, and the
//           processor time of the process beside the wall time of all of them
//   quit

#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/communicator.h"
#include "fsdp/error.h"
#include "train/run_on_ranks.h"
#include "worker/driver_link.h"
#include "worker/training.h"

namespace fsdp::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

rusage usage() {
  rusage result{};
  ::getrusage(RUSAGE_SELF, &result);
  return result;
}

double cpu_seconds() {
  const rusage now = usage();
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(now.ru_utime) + seconds(now.ru_stime);
}

json run_block(Training& training, int num_steps) {
  json times = json::array();
  json losses = json::array();
  const double cpu = cpu_seconds();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < num_steps; ++i) {
    const Clock::time_point start = Clock::now();
    const at::Tensor loss = training.step();
    times.push_back(seconds_since(start) * 1e3);
    losses.push_back(loss.item<double>());
  }
  return {
      {"ms", times},
      {"losses", losses},
      {"wall_s", seconds_since(begin)},
      {"cpu_s", cpu_seconds() - cpu},
      {"max_rss_mb", static_cast<double>(usage().ru_maxrss) / 1e3}};
}

int rank_from_environment() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

void serve(Training& training, int rank, const std::string& backend) {
  DriverLink driver;
  driver.send(json{
      {"rank", rank},
      {"pid", ::getpid()},
      {"parameters", training.num_parameters()},
      {"backend",
       backend}}.dump());
  while (const auto line = driver.receive()) {
    std::istringstream words(*line);
    std::string command;
    int num_steps = 0;
    words >> command >> num_steps;
    if (command == "quit") {
      return;
    }
    if (command != "run" || num_steps < 1) {
      throw UsageError("unknown command '" + *line + "' from the driver");
    }
    driver.send(run_block(training, num_steps).dump());
  }
}

void run(const TrainingOptions& options, const std::string& mode) {
  at::set_num_threads(1);
  if (mode == "copy") {
    with_one_line_errors([&] {
      const int rank = rank_from_environment();
      serve(*make_copy(options, rank), rank, "none");
    });
    return;
  }
  const ProcessGroup world = init_process_group();
  run_on_ranks(world, [&] {
    serve(
        *make_sharded(options, world),
        world.rank(),
        std::string(world.communicator().backend()));
  });
}

} // namespace
} // namespace fsdp::bench

int main(int argc, char** argv) {
  fsdp::bench::TrainingOptions options;
  std::string mode = "sharded";
  std::string dtype = "fp32";
  CLI::App app("A rank of libfsdp's side of a comparison");
  app.add_option("--mode", mode)->check(CLI::IsMember({"sharded", "copy"}));
  app.add_option("--preset", options.preset);
  app.add_option("--vocab", options.vocab_size);
  app.add_option("--weights", options.weights)->required();
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--lr", options.lr);
  CLI11_PARSE(app, argc, argv);
  options.bf16 = dtype == "bf16";
  try {
    fsdp::bench::run(options, mode);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "fsdp_bench_worker: " << error.what() << std::endl;
    return 1;
  }
}
