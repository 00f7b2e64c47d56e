#pragma once
// The training loop.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/device_mesh.h"
#include "fsdp/optim.h"
#include "fsdp/process_group.h"
#include "train/config.h"
#include "train/data/corpus.h"
#include "train/data/windows.h"
#include "train/metrics.h"
#include "train/models/language_model.h"
#include "train/step_profile.h"
#include "train/step_report.h"
#include "train/validation.h"

namespace fsdp {

/// One run. Every rank makes a trainer with equal options and calls run().
class Trainer {
 public:
  using ModelFactory =
      std::function<LanguageModel(const ModelShape&, std::uint64_t seed)>;

  /// [collective] Checks the options, sets the process's thread count, installs
  /// the counting allocator, makes and shards the model, opens the corpus,
  /// makes the optimizer. The observers live as long as this and are called on
  /// rank 0. Throws ConfigError and DataError.
  Trainer(
      TrainOptions options,
      ProcessGroup world,
      std::vector<TrainObserver*> observers,
      const ModelFactory& make = make_model);

  /// [collective] Trains to the end. A loss or gradient norm that is not finite
  /// stops all ranks with an Error that names the ranks and the step, before
  /// the weights change; with skip_nonfinite the step is skipped by all.
  TrainSummary run();

  const LanguageModel& model() const { return model_; }

 private:
  struct LocalLoss {
    double sum = 0;
    double num_tokens = 0;
  };

  void train_and_report();
  void train_step();
  LocalLoss forward_and_backward();
  Batch micro_batch(std::int64_t index) const;
  /// The norm of all gradients before clipping, equal on all ranks; NaN, and
  /// nothing is clipped, if a rank's loss is not finite.
  double clip_gradients(const StepReport& report);
  [[noreturn]] void throw_nonfinite(const StepReport& report) const;
  void account(StepMetrics metrics);
  bool is_over() const;
  void validate_if_due();
  void finish();
  void record_profile();
  template <typename Call>
  void tell(Call&& call);

  TrainOptions options_;
  ProcessGroup group_; ///< of the mesh: the ranks that share the parameters
  LanguageModel model_;
  std::vector<TrainObserver*> observers_;
  Corpus corpus_; ///< empty with fixed_random_batch
  std::optional<Validation> validation_;
  std::unique_ptr<Optimizer> optimizer_;

  std::int64_t share_ = 0; ///< sequences per rank and step
  std::int64_t micro_ = 0; ///< sequences per pass
  double progress_ = 0;
  double progress_after_warmup_ = 0;
  std::int64_t evals_done_ = 0;
  StepReport last_report_;
  std::optional<StepProfile> profile_; ///< on rank 0, if asked for
  TrainSummary summary_;
};

} // namespace fsdp
