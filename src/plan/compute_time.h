#pragma once
// Seconds of a rank's compute in one pass and in the optimizer's step, from
// counts (compute_work.h) over the device's rates (constants.h).

#include <vector>

#include "plan/job.h"
#include "plan/model.h"

namespace fsdp::plan {

/// Of one pass over micro_batch sequences.
struct UnitTime {
  double forward = 0;
  double recompute = 0; ///< by checkpointing, before the backward
  double backward = 0;

  double seconds() const { return forward + recompute + backward; }
};

struct ComputeTimes {
  UnitTime embedding;
  UnitTime head; ///< final norm, output head, loss
  std::vector<UnitTime> blocks;
  double optimizer = 0;       ///< a step
  double model_flops = 0;     ///< of a pass, what MFU counts
  double recompute_flops = 0; ///< of a pass, what HFU adds
};

/// Throws ConfigError if the model is known by its tensors only, if its blocks
/// are not those of its Transformer, or if the device lacks a figure.
ComputeTimes compute_times(
    const ModelShape& model, const Job& job, const Cluster& cluster);

/// Seconds of the optimizer's step alone.
double optimizer_time(
    const ModelShape& model, const Job& job, const Cluster& cluster);

/// FLOP/s of a large product of matrices in the job's compute type.
double matmul_rate(const Device& device, DType dtype);

} // namespace fsdp::plan
