#include "train/json_log.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "fsdp/error.h"

namespace fsdp {

std::string to_json(const StepMetrics& metrics) {
  return nlohmann::ordered_json{
      {"step", metrics.step},
      {"loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"tokens_per_s", metrics.tokens_per_s},
      {"step_ms", metrics.step_ms},
      {"wait_ms", metrics.wait_ms},
      {"reduce_ms", metrics.reduce_ms},
      {"optim_ms", metrics.optim_ms},
      {"peak_tensor_bytes", metrics.peak_tensor_bytes},
  }
      .dump();
}

JsonLog::JsonLog(const std::string& path) : path_(path), file_(path) {
  if (!file_) {
    throw ConfigError(
        "--log-json '" + path +
        "': cannot be written: " + std::strerror(errno));
  }
}

void JsonLog::on_step(const StepMetrics& metrics) {
  file_ << to_json(metrics) << std::endl;
  if (!file_) {
    throw DataError(
        "--log-json '" + path_ +
        "': cannot be written: " + std::strerror(errno));
  }
}

} // namespace fsdp
