// The micro-benchmarks on the ranks of a job; rank 0 reports.
//   fsdp run -n 2 -- fsdp_micro_benchmark --benchmark_filter=all_gather

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <exception>
#include <iostream>
#include <string_view>
#include <vector>

#include "comm/c10d/run_together.h"
#include "micro/benchmarks.h"

namespace {

class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void run(std::vector<char*> args) {
  const fsdp::ProcessGroup world = fsdp::init_process_group();
  at::set_num_threads(1);
  if (world.rank() != 0) {
    std::erase_if(args, [](const char* arg) {
      return std::string_view(arg).starts_with("--benchmark_out");
    });
  }
  int argc = static_cast<int>(args.size());
  benchmark::Initialize(&argc, args.data());
  fsdp::run_together(world, [&] {
    fsdp::bench::register_collectives(world);
    fsdp::bench::register_hundred_units(world);
    if (world.rank() == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      Silent silent;
      benchmark::RunSpecifiedBenchmarks(&silent);
    }
  });
}

} // namespace

int main(int argc, char** argv) {
  try {
    run(std::vector<char*>(argv, argv + argc));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "fsdp_micro_benchmark: " << error.what() << std::endl;
    return 1;
  }
}
