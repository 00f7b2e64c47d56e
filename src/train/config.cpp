#include "train/config.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <ranges>

#include "core/nearest_name.h"
#include "core/parse_int.h"
#include "fsdp/error.h"
#include "train/step_profile.h"

namespace fsdp {
namespace {

constexpr std::int64_t kByteVocabulary = 256;
constexpr const char* kDefaultPreset = "bytes";
constexpr std::string_view kDefaultPrompt = "def forward(self, ";

const TrainFlag& find_flag(const std::string& name) {
  const auto& flags = train_flags();
  const auto found = std::ranges::find(flags, name, &TrainFlag::name);
  if (found != flags.end()) {
    return *found;
  }
  std::vector<std::string> names;
  std::ranges::transform(flags, std::back_inserter(names), &TrainFlag::name);
  throw ConfigError(
      "'" + name + "' is no setting of fsdp train: the nearest is '" +
      nearest_name(name, names) + "'");
}

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw ConfigError(what);
  }
}

void check_batch(const TrainOptions& options, int world_size) {
  const std::int64_t batch = options.batch;
  require(
      batch % world_size == 0,
      "--batch " + std::to_string(batch) + " does not divide over " +
          std::to_string(world_size) + " ranks: choose a multiple of " +
          std::to_string(world_size));
  const std::int64_t share = batch / world_size;
  const std::int64_t micro =
      options.micro_batch == 0 ? share : options.micro_batch;
  require(
      share % micro == 0,
      "--micro-batch " + std::to_string(micro) + " does not divide a rank's " +
          std::to_string(share) + " sequences (--batch " +
          std::to_string(batch) + " over " + std::to_string(world_size) +
          " ranks)");
  require(
      !options.no_sync_accumulation || micro < share,
      "--no-sync-accumulation has no effect with one micro-batch per step: "
      "give a --micro-batch below " +
          std::to_string(share));
}

/// The largest tensor of a pass must fit, or the system kills the ranks.
void check_memory(
    const TrainOptions& options, int world_size, const MemoryLimit& memory) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t batch = options.batch;
  const std::int64_t seq = options.seq;
  const bool is_split = options.micro_batch != 0;
  const std::int64_t micro =
      is_split ? options.micro_batch : batch / world_size;
  require(
      batch <= kMost / seq,
      "--batch " + std::to_string(batch) + " x --seq " + std::to_string(seq) +
          ": expected at most " + std::to_string(kMost) +
          " tokens per step; lower one of them");
  // In floating point, which does not overflow.
  const double bytes = static_cast<double>(micro) * static_cast<double>(seq) *
                       static_cast<double>(options.shape.vocab_size) *
                       sizeof(float);
  const auto gigabytes = [](double size) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g GB", size / 1e9);
    return std::string(text.data());
  };
  require(
      bytes <= static_cast<double>(memory.available_bytes),
      (is_split ? "--micro-batch " + std::to_string(micro)
                : "--batch " + std::to_string(batch) + " over " +
                      std::to_string(world_size) + " ranks") +
          ", --seq " + std::to_string(seq) +
          ": the logits of one pass alone take " + gigabytes(bytes) + " (" +
          std::to_string(micro) + " sequences x " + std::to_string(seq) +
          " tokens x a vocabulary of " +
          std::to_string(options.shape.vocab_size) + " x 4 bytes), " +
          gigabytes(static_cast<double>(memory.available_bytes)) +
          " are available (" + memory.source + "); lower " +
          (is_split ? "--micro-batch" : "--batch, give a --micro-batch") +
          " or lower --seq");
}

void check_reports(const TrainOptions& options) {
  const bool is_bytes = options.shape.vocab_size == kByteVocabulary;
  const auto asks_for = [&](const std::string& name, bool is_something) {
    return is_something && options.given.contains(name);
  };
  for (const auto& [name, is_something] :
       {std::pair("prompt", true), std::pair("sample", options.sample > 0)}) {
    require(
        is_bytes || !asks_for(name, is_something),
        "--" + std::string(name) + " has no effect: preset " + options.preset +
            " is no model of bytes");
  }
  require(
      options.profile.empty() || options.steps == 0 ||
          options.steps >= StepProfile::kFirst,
      "--profile records from step " + std::to_string(StepProfile::kFirst) +
          " on, and --steps is " + std::to_string(options.steps) +
          ": expected that many or more");
  require(
      options.sample > 0 || !options.given.contains("prompt"),
      "--prompt has no effect with --sample 0");
  require(
      !options.fixed_random_batch || !asks_for("evals", options.evals > 0),
      "--evals has no effect: preset " + options.preset +
          " trains on one random batch unless --data names something else");
}

/// Few for a short run, which would else be spent on them.
std::int64_t default_evals(const TrainOptions& options) {
  constexpr std::int64_t kMost = 6;
  if (options.fixed_random_batch) {
    return 0;
  }
  const auto by_steps =
      options.steps > 0 ? std::clamp<std::int64_t>(options.steps / 50, 1, kMost)
                        : kMost;
  const auto by_minutes =
      options.minutes > 0 && options.minutes * 2 < kMost
          ? std::max<std::int64_t>(
                1, static_cast<std::int64_t>(options.minutes * 2))
          : kMost;
  return std::min(by_steps, by_minutes);
}

} // namespace

std::vector<Setting> environment_settings() {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  const char* launchers = std::getenv("FSDP_DEFAULT_THREADS");
  const std::string_view text = variable == nullptr ? "" : variable;
  if (text.empty() || (launchers != nullptr && text == launchers)) {
    return {};
  }
  // OpenMP takes a list too, a number for each level of nested regions.
  const std::string_view outermost = text.substr(0, text.find(','));
  const auto threads = parse_int(outermost);
  require(
      threads && *threads >= 1 && *threads <= kMaxThreads,
      "OMP_NUM_THREADS is \"" + std::string(text) +
          "\": expected a whole number from 1 to " +
          std::to_string(kMaxThreads));
  return {{"threads", std::string(outermost)}};
}

TrainOptions make_train_options(const std::vector<Setting>& settings) {
  TrainOptions options;
  const TrainFlag& preset = find_flag("preset");
  preset.set(options, kDefaultPreset);
  for (const auto& [name, value] : settings) {
    if (&find_flag(name) == &preset) {
      preset.set(options, value);
    }
  }
  const double min_lr_part = options.min_lr / options.lr;

  const auto is_given = [&](std::string_view name) {
    return std::ranges::find(settings, name, &Setting::first) != settings.end();
  };
  if (is_given("steps") || is_given("minutes")) {
    options.steps = 0;
    options.minutes = 0;
  }
  for (const auto& [name, value] : settings) {
    if (name != preset.name) {
      find_flag(name).set(options, value);
    }
    options.given.insert(name);
  }
  if (!is_given("min-lr")) {
    options.min_lr = options.lr * min_lr_part;
  }
  if (options.shape.vocab_size != kByteVocabulary) {
    options.sample = is_given("sample") ? options.sample : 0;
  } else if (options.prompt.empty()) {
    options.prompt = kDefaultPrompt;
  }
  if (!is_given("evals")) {
    options.evals = default_evals(options);
  }
  return options;
}

void check_train_options(
    const TrainOptions& options, int world_size, const MemoryLimit& memory) {
  require(
      options.steps > 0 || options.minutes > 0,
      "nothing says when to stop: give --steps or --minutes");
  require(
      !options.data.empty() || !options.needs_data,
      "preset " + options.preset +
          " trains on token files: name them with --data");
  require(
      options.min_lr <= options.lr,
      "--min-lr must not exceed --lr: the learning rate falls to it");
  require(
      options.shape.kind != ModelKind::kDecoder ||
          options.seq <= options.shape.max_seq,
      "--seq " + std::to_string(options.seq) + ": preset " + options.preset +
          " holds at most " + std::to_string(options.shape.max_seq) +
          " positions");
  check_batch(options, world_size);
  check_memory(options, world_size, memory);
  check_reports(options);
}

std::string describe(const TrainOptions& options) {
  std::string text;
  for (const TrainFlag& flag : train_flags()) {
    text += (text.empty() ? "" : " ") + flag.name + "=" + flag.get(options);
  }
  return text;
}

std::string_view name_of(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kSGD:
      return "sgd";
  }
  return "";
}

std::string_view name_of(ComputeType dtype) {
  return dtype == ComputeType::kFloat32 ? "fp32" : "bf16";
}

} // namespace fsdp
