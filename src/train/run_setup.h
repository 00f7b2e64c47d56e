#pragma once
// What a run is made of, from its options.

#include <memory>
#include <vector>

#include "fsdp/device_mesh.h"
#include "fsdp/optim.h"
#include "train/config.h"
#include "train/data/corpus.h"
#include "train/metrics.h"
#include "train/models/language_model.h"

namespace fsdp {

/// What --data names, or the Python sources beside LibTorch.
Corpus open_run_corpus(const TrainOptions& options);

/// [collective] Shards the model as the options say, over `mesh`.
void shard_for_run(
    const LanguageModel& model,
    const TrainOptions& options,
    const DeviceMesh& mesh);

std::unique_ptr<Optimizer> make_optimizer(
    const TrainOptions& options, std::vector<at::Tensor> parameters);

RunHeader describe_run(
    const TrainOptions& options,
    const LanguageModel& model,
    const Corpus& corpus,
    const ProcessGroup& group);

} // namespace fsdp
