#include <torch/nn/module.h>

#include "train/models/language_model.h"

namespace fsdp {

void shard_model(const LanguageModel& model, const FullyShardOptions& options) {
  for (const auto& block : model.blocks) {
    fully_shard(block, options);
  }
  fully_shard(model.module, options);
}

} // namespace fsdp
