// The table of the trainer's flags: name, help, how to read and to show it.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "core/parse_int.h"
#include "fsdp/error.h"
#include "train/config.h"

namespace fsdp {
namespace {

[[noreturn]] void bad_value(
    std::string_view flag,
    const std::string& text,
    const std::string& allowed) {
  throw ConfigError(
      "--" + std::string(flag) + " '" + text + "': expected " + allowed);
}

template <typename Number>
std::optional<Number> parse(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    return std::nullopt;
  }
  return value;
}

std::int64_t whole(
    std::string_view flag,
    const std::string& text,
    std::int64_t least,
    std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const auto value = parse<std::int64_t>(text);
  if (!value || *value < least || *value > most) {
    const bool is_too_large = !value && is_digits(text);
    const bool bounded =
        is_too_large || most != std::numeric_limits<std::int64_t>::max();
    bad_value(
        flag,
        text,
        "a whole number " + (bounded ? "from " + std::to_string(least) +
                                           " to " + std::to_string(most)
                                     : "of at least " + std::to_string(least)));
  }
  return *value;
}

enum class Zero : std::uint8_t { kAllowed, kRefused };

double real(std::string_view flag, const std::string& text, Zero zero) {
  const auto value = parse<double>(text);
  const bool in_range = value && std::isfinite(*value) &&
                        (*value > 0 || (*value == 0 && zero == Zero::kAllowed));
  if (!in_range) {
    bad_value(
        flag,
        text,
        zero == Zero::kAllowed ? "a number of at least 0" : "a number above 0");
  }
  return *value;
}

std::string show(double value) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

bool yes_or_no(std::string_view flag, const std::string& text) {
  if (text != "true" && text != "false") {
    bad_value(flag, text, "true or false");
  }
  return text == "true";
}

std::string show(bool value) {
  return value ? "true" : "false";
}

using Options = TrainOptions;
using Text = std::string;

std::vector<TrainFlag> model_and_data_flags() {
  return {
      {"preset",
       "NAME",
       "Model and defaults of the other flags, one of those below",
       [](Options& o, const Text& t) {
         const Preset& preset = find_preset(t);
         static_cast<TrainDefaults&>(o) = preset.defaults;
         o.preset = preset.name;
         o.shape = preset.shape;
       },
       [](const Options& o) { return o.preset; }},
      {"data",
       "PATH",
       "File or folder of text, or of tokens (.bin of nanoGPT or llm.c); "
       "default: Python sources beside LibTorch",
       [](Options& o, const Text& t) {
         if (t.empty()) {
           bad_value("data", t, "a file or folder");
         }
         o.data = t;
         o.fixed_random_batch = false;
       },
       [](const Options& o) {
         return !o.data.empty()        ? o.data
                : o.fixed_random_batch ? "(one random batch)"
                                       : "(default text)";
       }},
      {"steps",
       "N",
       "Stop after N steps (0: no limit)",
       [](Options& o, const Text& t) { o.steps = whole("steps", t, 0); },
       [](const Options& o) { return std::to_string(o.steps); }},
      {"minutes",
       "M",
       "Stop after M minutes of training, validation not counted (0: no limit)",
       [](Options& o, const Text& t) {
         o.minutes = real("minutes", t, Zero::kAllowed);
       },
       [](const Options& o) { return show(o.minutes); }},
      {"batch",
       "B",
       "Sequences per step over all ranks",
       [](Options& o, const Text& t) { o.batch = whole("batch", t, 1); },
       [](const Options& o) { return std::to_string(o.batch); }},
      {"micro-batch",
       "b",
       "Sequences per rank and pass (0: the rank's whole share)",
       [](Options& o, const Text& t) {
         o.micro_batch = whole("micro-batch", t, 0);
       },
       [](const Options& o) { return std::to_string(o.micro_batch); }},
      {"seq",
       "S",
       "Tokens per sequence",
       [](Options& o, const Text& t) { o.seq = whole("seq", t, 1); },
       [](const Options& o) { return std::to_string(o.seq); }},
  };
}

std::vector<TrainFlag> optimization_flags() {
  return {
      {"dtype",
       "TYPE",
       "Compute in fp32 or bf16; gradients are reduced in fp32",
       [](Options& o, const Text& t) {
         if (t != "fp32" && t != "bf16") {
           bad_value("dtype", t, "fp32 or bf16");
         }
         o.dtype = t == "fp32" ? ComputeType::kFloat32 : ComputeType::kBFloat16;
       },
       [](const Options& o) { return Text(name_of(o.dtype)); }},
      {"optimizer",
       "NAME",
       "adamw, adam or sgd",
       [](Options& o, const Text& t) {
         if (t != "adamw" && t != "adam" && t != "sgd") {
           bad_value("optimizer", t, "adamw, adam or sgd");
         }
         o.optimizer = t == "adamw"  ? OptimizerKind::kAdamW
                       : t == "adam" ? OptimizerKind::kAdam
                                     : OptimizerKind::kSGD;
       },
       [](const Options& o) { return Text(name_of(o.optimizer)); }},
      {"lr",
       "X",
       "Learning rate after the warmup; falls to --min-lr as a cosine",
       [](Options& o, const Text& t) { o.lr = real("lr", t, Zero::kRefused); },
       [](const Options& o) { return show(o.lr); }},
      {"warmup",
       "N",
       "Steps over which the learning rate rises from 0",
       [](Options& o, const Text& t) { o.warmup = whole("warmup", t, 0); },
       [](const Options& o) { return std::to_string(o.warmup); }},
      {"min-lr",
       "X",
       "Learning rate at the end; default: the preset's part of --lr",
       [](Options& o, const Text& t) {
         o.min_lr = real("min-lr", t, Zero::kAllowed);
       },
       [](const Options& o) { return show(o.min_lr); }},
      {"weight-decay",
       "X",
       "Decoupled for adamw, an L2 penalty for adam and sgd",
       [](Options& o, const Text& t) {
         o.weight_decay = real("weight-decay", t, Zero::kAllowed);
       },
       [](const Options& o) { return show(o.weight_decay); }},
      {"clip",
       "X",
       "Largest norm of all gradients together (0: not clipped)",
       [](Options& o, const Text& t) {
         o.clip = real("clip", t, Zero::kAllowed);
       },
       [](const Options& o) { return show(o.clip); }},
      {"skip-nonfinite",
       "",
       "Skip steps whose loss or gradient norm is not finite, on all ranks, "
       "instead of stopping",
       [](Options& o, const Text& t) {
         o.skip_nonfinite = yes_or_no("skip-nonfinite", t);
       },
       [](const Options& o) { return show(o.skip_nonfinite); }},
      {"seed",
       "N",
       "Of the weights, the data order and the sample",
       [](Options& o, const Text& t) {
         o.seed = static_cast<std::uint64_t>(whole("seed", t, 0));
       },
       [](const Options& o) { return std::to_string(o.seed); }},
  };
}

std::vector<TrainFlag> runtime_flags() {
  return {
      {"threads",
       "N",
       "Threads per rank; default: OMP_NUM_THREADS if you set it, else 1 (the "
       "number that fsdp run sets is for other programs)",
       [](Options& o, const Text& t) {
         o.threads = static_cast<int>(whole("threads", t, 1, kMaxThreads));
       },
       [](const Options& o) { return std::to_string(o.threads); }},
      {"no-sync-accumulation",
       "",
       "Reduce gradients with a step's last micro-batch only; each rank holds "
       "whole gradients until then",
       [](Options& o, const Text& t) {
         o.no_sync_accumulation = yes_or_no("no-sync-accumulation", t);
       },
       [](const Options& o) { return show(o.no_sync_accumulation); }},
      {"reshard-after-forward",
       "CHOICE",
       "auto (all units but the root), true or false",
       [](Options& o, const Text& t) {
         if (t != "auto" && t != "true" && t != "false") {
           bad_value("reshard-after-forward", t, "auto, true or false");
         }
         o.reshard_after_forward =
             t == "auto" ? std::nullopt : std::optional(t == "true");
       },
       [](const Options& o) {
         return o.reshard_after_forward ? show(*o.reshard_after_forward)
                                        : "auto";
       }},
      {"prefetch",
       "K",
       "Units gathered ahead of use",
       [](Options& o, const Text& t) {
         o.prefetch = static_cast<int>(whole("prefetch", t, 0, 1024));
       },
       [](const Options& o) { return std::to_string(o.prefetch); }},
      {"backend",
       "NAME",
       "How ranks talk: auto, self, shm or gloo",
       [](Options& o, const Text& t) {
         const std::array names{"auto", "self", "shm", "gloo"};
         if (std::ranges::find(names, t) == names.end()) {
           bad_value("backend", t, "auto, self, shm or gloo");
         }
         o.backend = t;
       },
       [](const Options& o) { return o.backend; }},
      {"timeout",
       "S",
       "Seconds after which a wait for another rank fails",
       [](Options& o, const Text& t) {
         constexpr double kMost = 1e6;
         const double seconds = real("timeout", t, Zero::kRefused);
         if (seconds < 0.001 || seconds > kMost) {
           bad_value("timeout", t, "seconds from 0.001 to 1000000");
         }
         o.timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
       },
       [](const Options& o) {
         return show(static_cast<double>(o.timeout.count()) / 1000);
       }},
  };
}

std::vector<TrainFlag> report_flags() {
  return {
      {"log-json",
       "FILE",
       "Write one JSON object per step to FILE",
       [](Options& o, const Text& t) {
         if (t.empty()) {
           bad_value("log-json", t, "a file name");
         }
         o.log_json = t;
       },
       [](const Options& o) { return o.log_json; }},
      {"profile",
       "FILE",
       "Write a timeline of rank 0's steps 3 to 12 to FILE, for fsdp trace and "
       "ui.perfetto.dev",
       [](Options& o, const Text& t) {
         if (t.empty()) {
           bad_value("profile", t, "a file name");
         }
         o.profile = t;
       },
       [](const Options& o) { return o.profile; }},
      {"evals",
       "N",
       "Validations, evenly over the run, the last at its end (0: none; "
       "default: 6, fewer in a short run)",
       [](Options& o, const Text& t) { o.evals = whole("evals", t, 0); },
       [](const Options& o) { return std::to_string(o.evals); }},
      {"prompt",
       "TEXT",
       "What the sample at the end continues",
       [](Options& o, const Text& t) {
         if (t.empty()) {
           bad_value("prompt", t, "at least one byte");
         }
         o.prompt = t;
       },
       [](const Options& o) { return "'" + o.prompt + "'"; }},
      {"sample",
       "N",
       "Bytes to sample at the end (0: none)",
       [](Options& o, const Text& t) { o.sample = whole("sample", t, 0); },
       [](const Options& o) { return std::to_string(o.sample); }},
  };
}

} // namespace

const std::vector<TrainFlag>& train_flags() {
  static const std::vector<TrainFlag> flags = [] {
    std::vector<TrainFlag> all;
    for (auto part :
         {model_and_data_flags(),
          optimization_flags(),
          runtime_flags(),
          report_flags()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return flags;
}

} // namespace fsdp
