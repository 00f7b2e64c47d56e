// A small network, sharded over all ranks of the job. Run it as
//   fsdp run -n 2 -- first_steps
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
FSDP_MODULE(Block); // in place of TORCH_MODULE(Block)

struct NetImpl : torch::nn::Module {
  NetImpl() : blocks(register_module("blocks", torch::nn::ModuleList())),
              head(register_module("head", torch::nn::Linear(64, 1))) {
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(64));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
FSDP_MODULE(Net);

int main() {
  auto world = fsdp::init_process_group();
  auto mesh = fsdp::init_device_mesh(world, "cpu", {world.size()}, {"shard"});
  Net net{nullptr};
  {
    fsdp::MetaInitGuard meta; // shapes only
    net = Net();
  }
  for (auto& block : *net->blocks) fsdp::fully_shard(block, {.mesh = mesh});
  fsdp::fully_shard(net, {.mesh = mesh});
  fsdp::materialize(net, /*seed=*/0); // this rank's rows
  fsdp::AdamW optimizer(net->parameters(), {.lr = 1e-2});
  torch::manual_seed(1);
  auto inputs = torch::randn({64, 64}).tensor_split(world.size())[world.rank()];
  for (int step = 0; step < 20; ++step) {
    auto loss = torch::mse_loss(net(inputs), inputs.sum(1, true));
    loss.backward(); // .grad is now this rank's shard of the mean
    fsdp::clip_grad_norm_(*net, 1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  auto rows = fsdp::shard_infos(*net).front();
  std::cout << "rank " << world.rank() << " holds rows " << rows.row_begin << " to "
            << rows.row_begin + rows.num_rows - 1 << " of " << rows.name << std::endl;
}
