#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {

double progress(
    const TrainOptions& options, std::int64_t steps_done, double seconds) {
  const double by_steps =
      options.steps > 0
          ? static_cast<double>(steps_done) / static_cast<double>(options.steps)
          : 0;
  const double by_time =
      options.minutes > 0 ? seconds / (60 * options.minutes) : 0;
  return std::clamp(std::max(by_steps, by_time), 0.0, 1.0);
}

double learning_rate(
    const TrainOptions& options,
    std::int64_t steps_done,
    double progress_now,
    double progress_after_warmup) {
  if (steps_done < options.warmup) {
    return options.lr * static_cast<double>(steps_done + 1) /
           static_cast<double>(options.warmup);
  }
  const double rest = 1 - progress_after_warmup;
  const double way =
      rest > 0 ? (progress_now - progress_after_warmup) / rest : 1;
  return options.min_lr +
         (options.lr - options.min_lr) * 0.5 *
             (1 + std::cos(std::numbers::pi * std::clamp(way, 0.0, 1.0)));
}

} // namespace fsdp
