// A rank that may take little more memory than it has at the start: builds a
// model on the meta device, shards it, materializes and trains it.
//
//   limited_start_program BUDGET_MEGABYTES

#include <sys/resource.h>

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "fsdp/fully_shard.h"
#include "fsdp/memory.h"
#include "fsdp/meta_init.h"
#include "fsdp/optim.h"
#include "fsdp/process_group.h"
#include "train/models/decoder.h"

namespace {

using namespace fsdp;

/// 24.8 M parameters: 397 MB of float32 weights, gradients and AdamW state.
ModelShape shape() {
  return {
      .vocab_size = 256,
      .d_model = 384,
      .num_layers = 14,
      .num_heads = 6,
      .num_kv_heads = 6,
      .d_ff = 1024,
      .max_seq = 64};
}

/// VmData of this process: what RLIMIT_DATA limits.
rlim_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) {
      return std::strtoull(line.c_str() + 7, nullptr, 10) * 1024;
    }
  }
  throw std::runtime_error("no VmData in /proc/self/status");
}

void limit_data(rlim_t budget) {
  const rlim_t bytes = data_bytes() + budget;
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) {
    throw std::runtime_error("setrlimit failed");
  }
}

void train(std::int64_t budget) {
  at::set_num_threads(1);
  const ProcessGroup world = init_process_group({.backend = "gloo"});
  const DeviceMesh mesh =
      init_device_mesh(world, "cpu", {world.size()}, {"shard"});
  install_counting_allocator();
  limit_data(static_cast<rlim_t>(budget));

  Decoder model{nullptr};
  {
    const MetaInitGuard meta;
    model = Decoder(shape());
  }
  for (const auto& block : *model->layers) {
    fully_shard(block, {.mesh = mesh});
  }
  fully_shard(model, {.mesh = mesh});
  materialize(model, 0);
  AdamW optimizer(model->parameters(), {.lr = 1e-3});
  const at::Tensor tokens = (at::arange(64) * 7 % 256).view({1, 64});
  double loss_value = 0;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor loss = at::cross_entropy_loss(
        model->forward(tokens).flatten(0, 1), tokens.flatten());
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    loss_value = loss.item<double>();
  }
  const std::int64_t peak = memory_report().total.peak;
  if (peak > budget) {
    throw std::runtime_error(
        "tensors took " + std::to_string(peak) + " bytes, more than allowed");
  }
  std::printf("trained: loss %.4f\n", loss_value);
}

} // namespace

int main(int argc, char** argv) {
  try {
    train(std::atoll(argc > 1 ? argv[1] : "0") * 1'000'000);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
