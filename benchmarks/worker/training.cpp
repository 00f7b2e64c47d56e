#include "worker/training.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <map>
#include <span>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/fully_shard.h"
#include "fsdp/memory.h"
#include "fsdp/meta_init.h"

namespace fsdp::bench {
namespace {

c10::ScalarType scalar_type_of(const SafetensorsEntry& entry) {
  switch (entry.dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kInt64:
      return at::kLong;
    default:
      throw DataError(
          "tensor '" + entry.name + "' is " +
          std::string(name_of(entry.dtype)) + ", expected float32 or int64");
  }
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.at(name);
  at::Tensor tensor = at::empty(entry.shape, scalar_type_of(entry));
  file.read(
      entry,
      std::span(
          static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()));
  return tensor;
}

/// The model is on the meta device, without buffers; each rank reads its rows.
void load_parameters(torch::nn::Module& module, const SafetensorsFile& file) {
  const at::NoGradGuard no_grad;
  to_empty(module);
  std::map<std::string, ShardInfo> shards;
  for (ShardInfo& info : shard_infos(module)) {
    shards.emplace(info.name, std::move(info));
  }
  for (auto& item : module.named_parameters()) {
    at::Tensor value = read_tensor(file, item.key());
    if (const auto shard = shards.find(item.key()); shard != shards.end()) {
      const ShardInfo& info = shard->second;
      value = value.narrow(0, info.row_begin, info.num_rows);
    }
    if (value.sizes() != item.value().sizes()) {
      throw DataError(
          "'" + item.key() + "' has another shape in '" + file.path().string() +
          "' than in the model");
    }
    item.value().copy_(value);
  }
}

LanguageModel make_meta_model(const ModelShape& shape) {
  const MetaInitGuard no_memory_yet;
  return make_model(shape, 0);
}

ModelShape shape_of(const TrainingOptions& options) {
  ModelShape shape = find_preset(options.preset).shape;
  if (options.vocab_size > 0) {
    shape.vocab_size = options.vocab_size;
  }
  return shape;
}

class Sharded final : public Training {
 public:
  Sharded(const TrainingOptions& options, const ProcessGroup& world)
      : Training(options, world.rank()) {
    FullyShardOptions sharding;
    sharding.mesh = init_device_mesh(world, "cpu", {world.size()}, {"shard"});
    if (options.bf16) {
      sharding.mp_policy.param_dtype = at::kBFloat16;
      sharding.mp_policy.reduce_dtype = at::kFloat;
    }
    shard_model(model_, sharding);
    load_parameters(*model_.module, file_);
    optimizer_ = std::make_unique<AdamW>(
        model_.module->parameters(), AdamWOptions{.lr = options.lr});
  }

  at::Tensor step() override {
    at::Tensor loss = forward_and_backward();
    optimizer_->step();
    optimizer_->zero_grad();
    return loss;
  }

 private:
  std::unique_ptr<AdamW> optimizer_;
};

class Copy final : public Training {
 public:
  Copy(const TrainingOptions& options, int rank) : Training(options, rank) {
    install_counting_allocator(); // as fully_shard does: it is faster
    load_parameters(*model_.module, file_);
    std::vector<at::Tensor> stepped = model_.module->parameters();
    if (options.bf16) {
      for (at::Tensor& parameter : stepped) {
        parameter = parameter.detach().clone();
      }
      masters_ = stepped;
      model_.module->to(at::kBFloat16);
      computed_ = model_.module->parameters();
    }
    optimizer_ = std::make_unique<AdamW>(
        std::move(stepped), AdamWOptions{.lr = options.lr});
  }

  at::Tensor step() override {
    cast_down();
    at::Tensor loss = forward_and_backward();
    cast_gradients_up();
    optimizer_->step();
    optimizer_->zero_grad();
    return loss;
  }

 private:
  void cast_down() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      computed_[i].copy_(masters_[i]);
    }
  }
  void cast_gradients_up() {
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      masters_[i].mutable_grad() = computed_[i].grad().to(at::kFloat);
      computed_[i].mutable_grad().reset();
    }
  }

  std::vector<at::Tensor> masters_;  // empty in float32
  std::vector<at::Tensor> computed_; // the model's own, in bfloat16
  std::unique_ptr<AdamW> optimizer_;
};

} // namespace

Training::Training(const TrainingOptions& options, int rank)
    : model_(make_meta_model(shape_of(options))), file_(options.weights) {
  const std::string tokens = "tokens." + std::to_string(rank);
  input_ = read_tensor(file_, tokens + ".input");
  target_ = read_tensor(file_, tokens + ".target");
}

at::Tensor Training::forward_and_backward() {
  const at::Tensor logits = model_.forward(input_).to(at::kFloat);
  at::Tensor loss =
      at::cross_entropy_loss(logits.flatten(0, 1), target_.flatten());
  loss.backward();
  return loss.detach();
}

std::unique_ptr<Training> make_sharded(
    const TrainingOptions& options, const ProcessGroup& world) {
  return std::make_unique<Sharded>(options, world);
}

std::unique_ptr<Training> make_copy(const TrainingOptions& options, int rank) {
  return std::make_unique<Copy>(options, rank);
}

} // namespace fsdp::bench
