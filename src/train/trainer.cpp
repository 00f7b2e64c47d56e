#include "train/trainer.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "comm/c10d/run_together.h" // AgreedError
#include "comm/error_text.h"
#include "fsdp/clip_grad.h"
#include "fsdp/error.h"
#include "fsdp/fully_shard.h"
#include "fsdp/memory.h"
#include "fsdp/meta_init.h"
#include "fsdp/unit_phases.h"
#include "train/memory_reports.h"
#include "train/run_on_ranks.h"
#include "train/run_setup.h"
#include "train/sampling.h"
#include "train/schedule.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

Trainer::Trainer(
    TrainOptions options,
    ProcessGroup world,
    std::vector<TrainObserver*> observers,
    const ModelFactory& make)
    : options_(std::move(options)),
      group_(std::move(world)),
      observers_(std::move(observers)) {
  check_train_options(options_, group_.size());
  install_counting_allocator();
  at::set_num_threads(options_.threads);
  share_ = options_.batch / group_.size();
  micro_ = options_.micro_batch == 0 ? share_ : options_.micro_batch;
  run_on_ranks(group_, [&] {
    {
      const MetaInitGuard no_memory_yet;
      model_ = make(options_.shape, options_.seed);
    }
    if (!options_.fixed_random_batch) {
      corpus_ = open_run_corpus(options_);
    }
    const DeviceMesh mesh =
        init_device_mesh(group_, "cpu", {group_.size()}, {"shard"});
    shard_for_run(model_, options_, mesh);
    materialize(*model_.module, options_.seed);
    group_ = mesh.group(0);
    optimizer_ = make_optimizer(options_, model_.module->parameters());
  });
  if (options_.evals > 0) {
    validation_.emplace(corpus_, group_, options_.seq, micro_);
  }
}

template <typename Call>
void Trainer::tell(Call&& call) {
  if (group_.rank() == 0) {
    std::ranges::for_each(observers_, call);
  }
}

void Trainer::record_profile() {
  if (options_.profile.empty() || group_.rank() != 0) {
    return;
  }
  begin_profile(options_.profile);
  profile_.emplace(group_.rank());
  set_unit_phase_observer(
      *model_.module,
      [this](UnitPhase phase, bool begins, const std::string& unit) {
        profile_->on_phase(phase, begins, unit, Clock::now());
      });
}

TrainSummary Trainer::run() {
  run_on_ranks(group_, [this] { train_and_report(); });
  return summary_;
}

void Trainer::train_and_report() {
  const RunHeader header = describe_run(options_, model_, corpus_, group_);
  tell([&](TrainObserver* o) { o->on_start(header); });
  reset_peak_memory();
  record_profile();
  while (!is_over()) {
    train_step();
    validate_if_due();
  }
  finish();
}

bool Trainer::is_over() const {
  // Rank 0's clock came with the report, so that all ranks stop alike.
  return summary_.num_steps > 0 && progress_ >= 1;
}

void Trainer::train_step() {
  const Clock::time_point start = Clock::now();
  const RuntimeCounters before = runtime_counters(*model_.module);
  if (summary_.num_steps <= options_.warmup) {
    progress_after_warmup_ = progress_;
  }
  optimizer_->set_lr(learning_rate(
      options_, summary_.num_steps, progress_, progress_after_warmup_));
  ++summary_.num_steps;
  if (profile_) {
    profile_->begin_step(summary_.num_steps, start);
  }

  const LocalLoss local = forward_and_backward();
  last_report_ = exchange(
      group_,
      {.loss_sum = local.sum,
       .num_tokens = local.num_tokens,
       .peak_tensor_bytes = static_cast<double>(memory_report().total.peak)},
      summary_.seconds + seconds_since(start));
  progress_ = progress(options_, summary_.num_steps, last_report_.seconds);

  StepMetrics metrics;
  metrics.grad_norm = clip_gradients(last_report_);
  metrics.skipped = !std::isfinite(metrics.grad_norm);
  if (metrics.skipped && !options_.skip_nonfinite) {
    throw_nonfinite(last_report_);
  }
  const Clock::time_point optim_start = Clock::now();
  if (!metrics.skipped) {
    optimizer_->step();
  }
  optimizer_->zero_grad();
  if (profile_) {
    profile_->end_step(optim_start, Clock::now());
  }
  metrics.optim_ms = seconds_since(optim_start) * 1e3;
  metrics.step_ms = seconds_since(start) * 1e3;
  const RuntimeCounters after = runtime_counters(*model_.module);
  metrics.wait_ms = after.wait_ms - before.wait_ms;
  metrics.reduce_ms = after.reduce_ms - before.reduce_ms;
  account(metrics);
}

void Trainer::account(StepMetrics metrics) {
  const auto num_tokens = static_cast<double>(last_report_.num_tokens());
  summary_.num_skipped += metrics.skipped ? 1 : 0;
  summary_.num_tokens += last_report_.num_tokens();
  summary_.seconds += metrics.step_ms / 1e3;
  summary_.wait_seconds += metrics.wait_ms / 1e3;
  summary_.reduce_seconds += metrics.reduce_ms / 1e3;
  summary_.optim_seconds += metrics.optim_ms / 1e3;
  summary_.loss = last_report_.loss();

  metrics.step = summary_.num_steps;
  metrics.loss = summary_.loss;
  metrics.lr = optimizer_->lr();
  metrics.tokens_per_s = num_tokens / (metrics.step_ms / 1e3);
  metrics.peak_tensor_bytes = last_report_.peak_tensor_bytes();
  metrics.progress = progress_;
  metrics.seconds_left =
      progress_ > 0 ? summary_.seconds * (1 - progress_) / progress_ : 0;
  tell([&](TrainObserver* o) { o->on_step(metrics); });
}

Trainer::LocalLoss Trainer::forward_and_backward() {
  LocalLoss total;
  const std::int64_t passes = share_ / micro_;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    if (options_.no_sync_accumulation) {
      set_requires_gradient_sync(*model_.module, pass + 1 == passes);
    }
    const Batch batch = micro_batch(pass);
    const at::Tensor loss =
        summed_loss(model_.forward(batch.input), batch.target);
    // Gradients are averaged over ranks: dividing by a rank's tokens makes
    // them those of the mean over the global batch.
    (loss / static_cast<double>(share_ * options_.seq)).backward();
    total.sum += loss.item<double>();
    total.num_tokens += static_cast<double>(batch.target.numel());
  }
  return total;
}

Batch Trainer::micro_batch(std::int64_t index) const {
  const std::int64_t first = group_.rank() * share_ + index * micro_;
  if (options_.fixed_random_batch) {
    return random_batch(
        options_.seed, first, micro_, options_.seq, options_.shape.vocab_size);
  }
  std::vector<std::int64_t> begins;
  for (std::int64_t i = first; i < first + micro_; ++i) {
    begins.push_back(training_window(
        options_.seed,
        summary_.num_steps,
        i,
        corpus_.train->size(),
        options_.seq));
  }
  return read_windows(*corpus_.train, begins, options_.seq);
}

double Trainer::clip_gradients(const StepReport& report) {
  if (!report.nonfinite_ranks().empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double limit = options_.clip > 0
                           ? options_.clip
                           : std::numeric_limits<double>::infinity();
  return clip_grad_norm_(*model_.module, limit);
}

void Trainer::throw_nonfinite(const StepReport& report) const {
  const std::vector<int> ranks = report.nonfinite_ranks();
  throw AgreedError(
      rank_prefix(group_.rank()) + "step " +
      std::to_string(summary_.num_steps) + ": " +
      (ranks.empty()
           ? "the gradient norm is not finite though every rank's loss is"
           : "the loss of " + name_ranks(ranks) + " is not finite") +
      ", the weights were left as they were; lower --lr, or give "
      "--skip-nonfinite to skip such steps");
}

void Trainer::validate_if_due() {
  const double due = static_cast<double>(evals_done_ + 1);
  if (!validation_ || progress_ * static_cast<double>(options_.evals) < due) {
    return;
  }
  evals_done_ = static_cast<std::int64_t>(
      progress_ * static_cast<double>(options_.evals));
  const Clock::time_point start = Clock::now();
  const double loss = validation_->loss(model_);
  summary_.validation_seconds += seconds_since(start);
  summary_.validation_loss = loss;
  tell([&](TrainObserver* o) { o->on_validation(summary_.num_steps, loss); });
}

void Trainer::finish() {
  summary_.memory = gather_memory_reports(group_);
  if (profile_) {
    set_unit_phase_observer(*model_.module, nullptr);
    write_profile(options_.profile, *profile_);
  }
  if (options_.sample > 0) {
    const Clock::time_point start = Clock::now();
    const std::string text = sample_bytes(
        model_,
        group_,
        {.prompt = options_.prompt,
         .num_bytes = options_.sample,
         .max_context = options_.seq,
         .seed = options_.seed});
    summary_.sample_seconds = seconds_since(start);
    tell([&](TrainObserver* o) { o->on_sample(options_.prompt, text); });
  }
  if (group_.rank() == 0 && validation_ && corpus_.train_text != nullptr) {
    summary_.bigram_loss = validation_->ngram_loss(corpus_, 2);
    summary_.trigram_loss = validation_->ngram_loss(corpus_, 3);
  }
  tell([&](TrainObserver* o) { o->on_end(summary_); });
}

} // namespace fsdp
