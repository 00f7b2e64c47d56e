#include "train/run_setup.h"

#include <torch/nn/module.h>

#include <string>
#include <utility>

#include "comm/communicator.h"
#include "fsdp/fully_shard.h"

namespace fsdp {

Corpus open_run_corpus(const TrainOptions& options) {
  const std::int64_t min_tokens = options.seq + 1;
  return options.data.empty()
             ? open_corpus(
                   default_text_folder(),
                   options.shape.vocab_size,
                   min_tokens,
                   ".py")
             : open_corpus(options.data, options.shape.vocab_size, min_tokens);
}

void shard_for_run(
    const LanguageModel& model,
    const TrainOptions& options,
    const DeviceMesh& mesh) {
  FullyShardOptions sharding;
  sharding.mesh = mesh;
  sharding.reshard_after_forward = options.reshard_after_forward;
  if (options.dtype == ComputeType::kBFloat16) {
    sharding.mp_policy.param_dtype = at::kBFloat16;
    sharding.mp_policy.reduce_dtype = at::kFloat;
  }
  shard_model(model, sharding);
  set_prefetch_depth(*model.module, options.prefetch);
}

std::unique_ptr<Optimizer> make_optimizer(
    const TrainOptions& options, std::vector<at::Tensor> parameters) {
  switch (options.optimizer) {
    case OptimizerKind::kAdamW:
      return std::make_unique<AdamW>(
          std::move(parameters),
          AdamWOptions{
              .lr = options.lr,
              .beta2 = options.beta2,
              .weight_decay = options.weight_decay});
    case OptimizerKind::kAdam:
      return std::make_unique<Adam>(
          std::move(parameters),
          AdamOptions{
              .lr = options.lr,
              .beta2 = options.beta2,
              .weight_decay = options.weight_decay});
    case OptimizerKind::kSGD:
      break;
  }
  return std::make_unique<SGD>(
      std::move(parameters),
      SGDOptions{.lr = options.lr, .weight_decay = options.weight_decay});
}

RunHeader describe_run(
    const TrainOptions& options,
    const LanguageModel& model,
    const Corpus& corpus,
    const ProcessGroup& group) {
  return {
      .model = options.preset + ": " +
               std::string(find_preset(options.preset).summary) + " (" +
               std::to_string(model.num_parameters) + " parameters)",
      .data = options.fixed_random_batch ? "one batch of random tokens"
                                         : corpus.description,
      .ranks = std::to_string(group.size()) + " rank(s) over " +
               std::string(group.communicator().backend()) + ", " +
               std::to_string(options.threads) + " thread(s) each",
      .settings = describe(options),
  };
}

} // namespace fsdp
