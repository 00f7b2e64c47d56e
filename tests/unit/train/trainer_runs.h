#pragma once
// Runs of the trainer on ranks that are threads, with all they told.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/memory.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/trainer.h"

namespace fsdp::testing {

/// What rank 0's observer heard, and the model afterwards.
struct TrainRun : TrainObserver {
  RunHeader header;
  std::vector<StepMetrics> steps;
  std::vector<std::pair<std::int64_t, double>> validations;
  std::string sample;
  TrainSummary summary;
  std::map<std::string, at::Tensor> weights;
  RuntimeCounters counters;
  int num_threads = 0;

  void on_start(const RunHeader& told) override { header = told; }
  void on_step(const StepMetrics& told) override { steps.push_back(told); }
  void on_validation(std::int64_t step, double loss) override {
    validations.emplace_back(step, loss);
  }
  void on_sample(const std::string&, const std::string& text) override {
    sample = text;
  }
  void on_end(const TrainSummary& told) override { summary = told; }

  std::vector<double> losses() const {
    std::vector<double> all;
    for (const StepMetrics& step : steps) {
      all.push_back(step.loss);
    }
    return all;
  }
};

/// Changes a rank's model before it is sharded.
using ChangeModel = std::function<void(int rank, LanguageModel& model)>;

inline Trainer::ModelFactory changed_model(
    int rank, const ChangeModel& change) {
  return [=](const ModelShape& shape, std::uint64_t seed) {
    LanguageModel model = make_model(shape, seed);
    if (change) {
      change(rank, model);
    }
    return model;
  };
}

inline void collect(Trainer& trainer, int rank, TrainRun& run) {
  const auto weights = full_parameters(*trainer.model().module);
  if (rank == 0) {
    run.weights = {weights.begin(), weights.end()};
    run.counters = runtime_counters(*trainer.model().module);
    run.num_threads = at::get_num_threads();
  }
}

/// Trains on `size` ranks over `backend`; `settings` are those of the CLI.
inline TrainRun run_trainer(
    int size,
    const std::vector<Setting>& settings,
    const ChangeModel& change = {},
    const std::string& backend = "inproc") {
  TrainRun run;
  const TrainOptions options = make_train_options(settings);
  with_ranks(
      size,
      [&](const ProcessGroup& world) {
        Trainer trainer(
            options, world, {&run}, changed_model(world.rank(), change));
        trainer.run();
        collect(trainer, world.rank(), run);
      },
      backend);
  return run;
}

/// Largest |a - b| / |b| over two equally long lists.
inline double relative_difference(
    const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return most;
}

} // namespace fsdp::testing
