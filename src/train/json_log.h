#pragma once
// --log-json: one JSON object per step and line.

#include <fstream>
#include <string>

#include "train/metrics.h"

namespace fsdp {

/// step, loss, grad_norm, tokens_per_s, step_ms, wait_ms, reduce_ms, optim_ms,
/// peak_tensor_bytes; numbers that are not finite are null.
std::string to_json(const StepMetrics& metrics);

class JsonLog final : public TrainObserver {
 public:
  /// Empties or makes the file. Throws ConfigError naming it if it cannot.
  explicit JsonLog(const std::string& path);
  /// The line is in the file when this returns. Throws DataError if it cannot
  /// be written.
  void on_step(const StepMetrics& metrics) override;

 private:
  std::string path_;
  std::ofstream file_;
};

} // namespace fsdp
