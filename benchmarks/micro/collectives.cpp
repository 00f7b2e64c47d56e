// Collectives beside a memcpy of as many bytes as they have in all.

#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "micro/benchmarks.h"

namespace fsdp::bench {
namespace {

constexpr int kRepetitions = 7;

/// What a rank works on: `numel` floats over all ranks, and an equal share.
struct Buffers {
  Buffers(std::int64_t elements, const ProcessGroup& world)
      : numel(elements),
        counts(static_cast<std::size_t>(world.size()), elements / world.size()),
        whole(static_cast<std::size_t>(elements), 1.0F),
        other(whole) {}

  std::int64_t numel;
  std::vector<std::int64_t> counts;
  std::vector<float> whole;
  std::vector<float> other;
};

void add(
    const std::string& name,
    std::int64_t numel,
    const ProcessGroup& world,
    const std::function<void(Buffers&)>& call) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(sizeof(float));
  const auto run = [=](benchmark::State& state) {
    Buffers buffers(numel, world);
    call(buffers); // touches the memory
    for (auto _ : state) {
      call(buffers);
      benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * bytes);
  };
  const std::string size =
      bytes == 0 ? "" : "/" + std::to_string(bytes >> 10) + "KiB";
  benchmark::RegisterBenchmark((name + size).c_str(), run)
      ->Iterations(bytes > (1 << 20) ? 20 : 200)
      ->Repetitions(kRepetitions)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

} // namespace

void register_collectives(const ProcessGroup& world) {
  Communicator& comm = world.communicator();
  add("barrier", 0, world, [&comm](Buffers&) { comm.barrier("micro"); });
  for (const std::int64_t kib : {64, 1024, 16384}) {
    const std::int64_t numel = (kib << 10) / 4;
    add("memcpy", numel, world, [](Buffers& b) {
      std::memcpy(
          b.other.data(), b.whole.data(), b.whole.size() * sizeof(float));
    });
    add("all_gather", numel, world, [&comm](Buffers& b) {
      comm.all_gather(
              b.whole.data(),
              b.other.data(),
              b.counts,
              DType::kFloat32,
              "micro")
          ->wait();
    });
    add("reduce_scatter", numel, world, [&comm](Buffers& b) {
      comm.reduce_scatter(
              b.whole.data(),
              DType::kFloat32,
              b.other.data(),
              DType::kFloat32,
              b.counts,
              ReduceOp::kAvg,
              "micro")
          ->wait();
    });
    add("all_reduce", numel, world, [&comm](Buffers& b) {
      comm.all_reduce(
          b.whole.data(), b.numel, DType::kFloat32, ReduceOp::kAvg, "micro");
    });
  }
}

} // namespace fsdp::bench
