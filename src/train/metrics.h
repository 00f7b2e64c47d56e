#pragma once
// What a run tells about itself. Times are rank 0's unless said otherwise.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/memory.h"

namespace fsdp {

/// Before the first step.
struct RunHeader {
  std::string model; ///< "bytes: decoder ..., 3082496 parameters"
  std::string data;
  std::string ranks;    ///< "2 ranks over shm, 1 thread each"
  std::string settings; ///< every flag with its value in effect
};

struct StepMetrics {
  std::int64_t step = 0; ///< from 1
  double loss = 0;      ///< mean over the tokens of all ranks and micro-batches
  double grad_norm = 0; ///< of all gradients, before clipping
  double lr = 0;
  double tokens_per_s = 0; ///< of all ranks
  double step_ms = 0;
  double wait_ms = 0;   ///< blocked on other ranks
  double reduce_ms = 0; ///< copying and summing gradients
  double optim_ms = 0;
  std::int64_t peak_tensor_bytes = 0; ///< maximum over ranks, since the start
  bool skipped = false;               ///< not finite, weights unchanged
  double progress = 0;                ///< share of the run, in (0, 1]
  double seconds_left = 0;            ///< estimate
};

struct TrainSummary {
  std::int64_t num_steps = 0;
  std::int64_t num_skipped = 0;
  std::int64_t num_tokens = 0; ///< of all ranks
  double seconds = 0;          ///< of training: no validation, no sampling
  double wait_seconds = 0;
  double reduce_seconds = 0;
  double optim_seconds = 0;
  double validation_seconds = 0;         ///< beside those of training
  double sample_seconds = 0;             ///< the same
  double loss = 0;                       ///< of the last step
  std::vector<MemoryReport> memory;      ///< of training, by rank
  std::optional<double> validation_loss; ///< the last one
  /// The same windows by tables of counts; for text only, on rank 0 only.
  std::optional<double> bigram_loss;
  std::optional<double> trigram_loss;

  double compute_seconds() const {
    return seconds - wait_seconds - reduce_seconds - optim_seconds;
  }
  double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0;
  }
};

/// Called on rank 0 only, from the thread that trains.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_start(const RunHeader& /*header*/) {}
  virtual void on_step(const StepMetrics& /*metrics*/) {}
  virtual void on_validation(std::int64_t /*step*/, double /*loss*/) {}
  virtual void on_sample(
      const std::string& /*prompt*/, const std::string& /*text*/) {}
  virtual void on_end(const TrainSummary& /*summary*/) {}
};

} // namespace fsdp
