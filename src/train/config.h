#pragma once
// The trainer's settings: flags of `fsdp train` and keys of its configuration
// files, which have the same names.

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/memory_limits.h"
#include "train/presets.h"

namespace fsdp {

inline constexpr int kMaxThreads = 1024;

/// What a preset sets, and what none does.
struct TrainOptions : TrainDefaults {
  std::string preset;
  ModelShape shape;
  std::string data;             ///< file or folder; empty: the preset's
  std::int64_t micro_batch = 0; ///< per rank and pass; 0: the rank's share
  std::uint64_t seed = 0;
  int threads = 1;
  bool no_sync_accumulation = false;
  std::optional<bool> reshard_after_forward;
  int prefetch = 1;
  std::string backend = "auto";
  std::chrono::milliseconds timeout{300'000};
  std::string log_json; ///< empty: none
  std::string profile;  ///< file for a timeline; empty: none
  bool skip_nonfinite = false;
  std::int64_t evals = 6;      ///< validations, spread over the run
  std::string prompt;          ///< of the sampled continuation
  std::int64_t sample = 256;   ///< its bytes; 0: none
  std::set<std::string> given; ///< names that the user set
};

/// Name without dashes ("min-lr") and value as text.
using Setting = std::pair<std::string, std::string>;

/// One of the trainer's flags.
struct TrainFlag {
  std::string name;
  std::string value; ///< "N", "PATH"; empty: a switch, on where it stands
  std::string help;
  void (*set)(TrainOptions& options, const std::string& text);
  std::string (*get)(const TrainOptions& options);
};

/// What the user's environment sets, before files and flags: OMP_NUM_THREADS is
/// `threads`, unless `fsdp run` chose that number (FSDP_DEFAULT_THREADS): with
/// it a run's bits would depend on the machine's cores. Throws ConfigError if
/// it is no number.
std::vector<Setting> environment_settings();

/// In the order of the help text.
const std::vector<TrainFlag>& train_flags();

/// The preset's defaults ("bytes" unless one is named), then the other
/// `settings` in order (a later one wins). Naming
/// one of --steps and --minutes lifts the preset's limit on the other. Throws
/// ConfigError: an unknown name (with the nearest valid one), a value that is
/// none (with what is allowed).
TrainOptions make_train_options(const std::vector<Setting>& settings);

/// Throws ConfigError where the settings contradict each other, do not divide
/// over `world_size` ranks, would have no effect, or name sizes of which one
/// rank's logits of one pass alone exceed `memory`.
void check_train_options(
    const TrainOptions& options,
    int world_size,
    const MemoryLimit& memory = available_memory());

/// "preset=bytes steps=0 ...": every flag with its value in effect.
std::string describe(const TrainOptions& options);

std::string_view name_of(OptimizerKind optimizer);
std::string_view name_of(ComputeType dtype);

} // namespace fsdp
