// An MLP whose parameters, gradients and optimizer state are sharded over the
// ranks of the job. It prints the same losses, to rounding, for any number of ranks that divides
// the 64 samples:
//   fsdp run -n 2 -- build/consumer
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out)
      : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::relu(linear(x)); }
  torch::nn::Linear linear;
};
FSDP_MODULE(Layer);

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    for (int64_t in : {16, 64, 64}) layers->push_back(Layer(in, 64));
    register_module("layers", layers);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear head{64, 1};
};
FSDP_MODULE(Mlp);

int main() try {
  auto world = fsdp::init_process_group();
  auto mesh = fsdp::init_device_mesh(world, "cpu", {world.size()});
  torch::manual_seed(0); // the same weights and data on every rank
  Mlp model;
  for (auto& layer : *model->layers) fsdp::fully_shard(layer, {.mesh = mesh});
  fsdp::fully_shard(model, {.mesh = mesh});
  fsdp::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  auto inputs = torch::randn({64, 16});
  auto targets = inputs.square().sum(1, true);
  inputs = inputs.tensor_split(world.size())[world.rank()];
  targets = targets.tensor_split(world.size())[world.rank()];
  for (int step = 1; step <= 10; ++step) {
    auto loss = torch::mse_loss(model(inputs), targets);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    auto mean = loss.detach();
    world.all_reduce(mean, fsdp::ReduceOp::kAvg);
    if (world.rank() == 0) std::printf("step %d loss %.6f\n", step, mean.item<double>());
  }
} catch (const fsdp::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
