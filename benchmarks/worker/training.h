#pragma once
// One rank's training loop, on weights and tokens from a file, sharded or not.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "fsdp/optim.h"
#include "fsdp/process_group.h"
#include "train/models/language_model.h"

namespace fsdp::bench {

struct TrainingOptions {
  std::string preset = "seed";
  std::int64_t vocab_size = 0; ///< 0: the preset's
  /// A safetensors file: the parameters by name, and of each rank r the int64
  /// tensors tokens.r.input and tokens.r.target, [batch, seq].
  std::string weights;
  bool bf16 = false; ///< compute; parameters and reduction stay float32
  double lr = 3e-4;
};

/// A rank of a training run that repeats one step on one batch.
class Training {
 public:
  virtual ~Training() = default;
  /// Forward, backward, AdamW; the loss is that of this rank's batch before the
  /// step.
  virtual at::Tensor step() = 0;
  std::int64_t num_parameters() const { return model_.num_parameters; }

 protected:
  Training(const TrainingOptions& options, int rank);
  at::Tensor forward_and_backward();

  LanguageModel model_; ///< without memory at first
  const SafetensorsFile file_;

 private:
  at::Tensor input_;
  at::Tensor target_;
};

/// [collective] Every block and the root sharded over all of `world`.
std::unique_ptr<Training> make_sharded(
    const TrainingOptions& options, const ProcessGroup& world);

/// No unit, no other rank, the whole model and optimizer in this process. In
/// bf16 the model itself is in bfloat16 and AdamW steps float32 copies, once
/// cast down and once up a step: the least that the same dtypes cost without
/// sharding.
std::unique_ptr<Training> make_copy(const TrainingOptions& options, int rank);

} // namespace fsdp::bench
