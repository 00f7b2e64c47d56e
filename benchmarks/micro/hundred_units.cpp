// A step of 100 units with next to no work in them, sharded and not: the
// difference is what the library costs.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "fsdp/fully_shard.h"
#include "fsdp/hooked.h"
#include "fsdp/optim.h"
#include "micro/benchmarks.h"

namespace fsdp::bench {

using Layer = HookedHolder<torch::nn::LinearImpl>;

struct HundredUnitsImpl : torch::nn::Module {
  static constexpr int kNumUnits = 100;
  static constexpr std::int64_t kWidth = 8;

  HundredUnitsImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < kNumUnits; ++i) {
      layers->push_back(Layer(kWidth, kWidth));
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<Layer>()->forward(x);
    }
    return x;
  }

  torch::nn::ModuleList layers;
};
FSDP_MODULE(HundredUnits);

namespace {

constexpr int kIterations = 30;
constexpr int kWarmUp = 5;
constexpr int kRepetitions = 7;

void run_steps(
    benchmark::State& state, const ProcessGroup& world, bool sharded) {
  HundredUnits model;
  if (sharded) {
    const FullyShardOptions options{
        .mesh = init_device_mesh(world, "cpu", {world.size()}, {"shard"})};
    for (const auto& layer : *model->layers) {
      fully_shard(layer, options);
    }
    fully_shard(model, options);
  }
  AdamW optimizer(model->parameters());
  const at::Tensor input =
      at::ones({HundredUnitsImpl::kWidth, HundredUnitsImpl::kWidth});
  const auto step = [&] {
    model(input).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < kWarmUp; ++i) {
    step();
  }
  for (auto _ : state) {
    step();
  }
}

void add(const char* name, const ProcessGroup& world, bool sharded) {
  benchmark::RegisterBenchmark(
      name, [=](benchmark::State& state) { run_steps(state, world, sharded); })
      ->Iterations(kIterations)
      ->Repetitions(kRepetitions)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

} // namespace

void register_hundred_units(const ProcessGroup& world) {
  add("hundred_units/plain", world, false);
  add("hundred_units/sharded", world, true);
}

} // namespace fsdp::bench
