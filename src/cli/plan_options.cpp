#include "cli/plan_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "cli/option_value.h"
#include "cli/units.h"
#include "fsdp/error.h"
#include "plan/catalog.h"
#include "plan/config_json.h"
#include "plan/find_by_name.h"

namespace fsdp::cli {

namespace {

using plan::Checkpointing;
using plan::OptimizerKind;
using plan::Precision;
using plan::Strategy;
using plan::Transport;

constexpr const char* kDefaultDevice = "H100-SXM-80GB";
constexpr std::int64_t kDefaultSeq = 2048;

template <typename Value>
struct Choice {
  std::string name;
  Value value;
};

/// By the planner's names of them.
template <typename Value>
std::vector<Choice<Value>> named(std::initializer_list<Value> values) {
  std::vector<Choice<Value>> all;
  for (const Value value : values) {
    all.push_back({std::string(name_of(value)), value});
  }
  return all;
}

std::vector<Choice<Strategy>> strategies() {
  return named(
      {Strategy::kNoShard,
       Strategy::kShardGradOp,
       Strategy::kFullShard,
       Strategy::kHybridShard,
       Strategy::kHybridShardZero2});
}

std::vector<Choice<Checkpointing>> checkpointings() {
  return named(
      {Checkpointing::kNone, Checkpointing::kSelective, Checkpointing::kFull});
}

std::vector<Choice<OptimizerKind>> optimizers() {
  return named(
      {OptimizerKind::kAdamW,
       OptimizerKind::kSgd,
       OptimizerKind::kSgdMomentum});
}

std::vector<Choice<Transport>> transports() {
  return named({Transport::kCollectives, Transport::kSharedMemory});
}

std::vector<Choice<plan::Runtime>> runtimes() {
  return named(
      {plan::Runtime::kLibfsdp, plan::Runtime::kFsdp2, plan::Runtime::kFsdp1});
}

std::vector<Choice<bool>> attentions() {
  return {{"fused", true}, {"plain", false}};
}

std::vector<Choice<Precision>> precisions() {
  constexpr DType kBf16 = DType::kBFloat16;
  constexpr DType kFp32 = DType::kFloat32;
  return {
      {"fp32", {}},
      {"bf16", {.compute = kBf16}},
      {"bf16-reduce", {.compute = kBf16, .reduce = kBf16}},
      {"pure-bf16", {.master = kBf16, .compute = kBf16, .reduce = kBf16}},
      {"fp16", {.compute = DType::kFloat16}},
      {"fp8", {.master = kFp32, .compute = kBf16, .fp8_matmuls = true}}};
}

template <typename Value>
Value choose(
    const char* flag,
    const std::vector<Choice<Value>>& choices,
    const std::optional<std::string>& name,
    Value otherwise) {
  if (!name) {
    return otherwise;
  }
  return plan::find_by_name(
             flag, std::span<const Choice<Value>>(choices), *name)
      .value;
}

struct Flag {
  const char* name;
  const char* value; ///< what its value is called; empty for a switch
  const char* help;
};

constexpr std::array kFlags{
    Flag{
        "--model",
        "NAME|FILE",
        "Model by name, its config.json, or a file of weights (.safetensors)"},
    Flag{
        "--params",
        "N",
        "Instead: a decoder of so many parameters (7B, 1e9, 350M)"},
    Flag{
        "--device",
        "NAME",
        "Device by name (default: H100-SXM-80GB, or what own figures say)"},
    Flag{
        "--peak-tflops",
        "X",
        "Own figure: TFLOP/s of matrix products in the precision"},
    Flag{"--memory-gib", "X", "Own figure: memory of a device, GiB"},
    Flag{
        "--memory-bandwidth-gbytes",
        "X",
        "Own figure: of that memory, gigabytes a second"},
    Flag{
        "--node-bandwidth-gbytes",
        "X",
        "Own figure: to the devices of a node, gigabytes a second"},
    Flag{
        "--network-bandwidth-gbytes",
        "X",
        "Own figure: to other nodes, gigabytes a second of a device"},
    Flag{"--nodes", "N", "Nodes (default: 1)"},
    Flag{
        "--gpus-per-node",
        "N",
        "Devices of a node, one rank each (default: as usual for the device)"},
    Flag{
        "--strategy",
        "NAME",
        "no_shard, shard_grad_op, full_shard, hybrid_shard or "
        "hybrid_shard_zero2 (default: full_shard)"},
    Flag{
        "--shard-size",
        "N",
        "Ranks that share a copy, with a hybrid strategy (default: those of a "
        "node)"},
    Flag{
        "--precision",
        "NAME",
        "fp32, bf16, bf16-reduce, pure-bf16, fp16 or fp8 (default: bf16, "
        "reduced and kept in fp32)"},
    Flag{"--optimizer", "NAME", "adamw, sgd or sgd_momentum (default: adamw)"},
    Flag{
        "--offload",
        "",
        "Shards, gradients and optimizer state in the host's memory"},
    Flag{"--batch", "N", "Sequences of a rank and pass (default: 1)"},
    Flag{
        "--seq",
        "N",
        "Tokens of a sequence (default: 2048, or the model's positions if "
        "fewer)"},
    Flag{"--accumulation", "N", "Passes of a step (default: 1)"},
    Flag{"--no-sync", "", "Only the last pass of a step reduces gradients"},
    Flag{"--checkpointing", "NAME", "none, selective or full (default: none)"},
    Flag{
        "--checkpointed-blocks",
        "N",
        "Of the first N blocks only (default: of all)"},
    Flag{"--attention", "NAME", "fused or plain (default: fused)"},
    Flag{"--fused-loss", "", "The loss copies no logits to fp32"},
    Flag{"--compile", "", "Elementwise operations are fused"},
    Flag{"--prefetch", "N", "Units gathered ahead (default: 1)"},
    Flag{
        "--backend",
        "NAME",
        "collectives or shm, libfsdp's shared memory on one node (default: "
        "collectives)"},
    Flag{
        "--runtime",
        "NAME",
        "Whose buffers and messages: libfsdp, or fsdp2 or fsdp1, PyTorch over "
        "NCCL (default: libfsdp)"},
};

/// Each of these replaces one figure of a device.
constexpr std::array kOwnFigures{
    "--peak-tflops",
    "--memory-gib",
    "--memory-bandwidth-gbytes",
    "--node-bandwidth-gbytes",
    "--network-bandwidth-gbytes"};

/// Of what a pass computes and keeps, and nothing else.
constexpr std::array kActivationFlags{
    "--batch", "--seq", "--checkpointing", "--attention", "--compile"};

plan::ModelShape model_of_weights(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<plan::ParamShape> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.push_back({entry.name, entry.shape});
  }
  return plan::model_of_tensors(path, std::move(tensors));
}

[[noreturn]] void refuse_value(
    const char* flag, const std::string& text, const std::string& expected) {
  throw ConfigError(
      std::string(flag) + " '" + text + "': expected " + expected);
}

/// The rates that --peak-tflops stands for.
void set_peak(
    plan::Device& device, const Precision& precision, double flops_per_second) {
  if (precision.fp8_matmuls) {
    device.peak_fp8 = flops_per_second;
    return;
  }
  switch (precision.compute) {
    case DType::kFloat16:
      device.peak_fp16 = flops_per_second;
      return;
    case DType::kFloat32:
      device.peak_tf32 = flops_per_second;
      return;
    default:
      device.peak_bf16 = flops_per_second;
  }
}

} // namespace

PlanOptions::PlanOptions(CLI::App& command) : command_(&command) {
  for (const Flag& flag : kFlags) {
    add_option(command, flag.name, flag.value, flag.help);
  }
}

bool PlanOptions::any_given() const {
  return std::ranges::any_of(kFlags, [&](const Flag& flag) {
    return command_->get_option(flag.name)->count() > 0;
  });
}

std::optional<std::string> PlanOptions::text(const char* flag) const {
  return value_of(*command_->get_option(flag));
}

bool PlanOptions::is_on(const char* flag) const {
  return cli::is_on(*command_->get_option(flag));
}

std::int64_t PlanOptions::count_or(
    const char* flag, std::int64_t otherwise) const {
  const auto given = text(flag);
  if (!given) {
    return otherwise;
  }
  const auto count = parse_count(*given);
  if (!count) {
    refuse_value(flag, *given, "a whole number from 0 to 9223372036854775807");
  }
  return *count;
}

std::optional<double> PlanOptions::positive(const char* flag) const {
  const auto given = text(flag);
  if (!given) {
    return std::nullopt;
  }
  const auto number = parse_real(*given);
  constexpr double kMost = 1e9;
  if (!number || *number <= 0 || *number > kMost) {
    refuse_value(flag, *given, "a number above 0, at most 1e9");
  }
  return number;
}

plan::ModelShape PlanOptions::read_model() const {
  const auto model = text("--model");
  if (model && text("--params")) {
    throw ConfigError("--model and --params are both given: expected one");
  }
  if (text("--params")) {
    return model_of(plan::assumed_transformer(count_or("--params", 0)));
  }
  if (!model) {
    throw ConfigError(
        "no model: expected --model NAME, --model FILE or --params N");
  }
  if (model->ends_with(".safetensors")) {
    return model_of_weights(*model);
  }
  return model_of(
      model->ends_with(".json") ? plan::read_config_json(*model)
                                : plan::find_model(*model));
}

plan::Device PlanOptions::read_device(const Precision& precision) const {
  const auto name = text("--device");
  const bool own = std::ranges::any_of(
      kOwnFigures, [&](const char* flag) { return text(flag).has_value(); });
  plan::Device device;
  device.has_caching_allocator = true;
  if (name || !own) {
    device = plan::find_device(name.value_or(kDefaultDevice));
  }
  if (own) {
    device.name += device.name.empty() ? "own figures" : " with own figures";
  }
  constexpr double kGiga = 1e9;
  constexpr double kGibi = 1024.0 * 1024 * 1024;
  if (const auto tflops = positive("--peak-tflops")) {
    set_peak(device, precision, *tflops * 1e12);
  }
  if (const auto memory = positive("--memory-gib")) {
    device.memory_bytes = *memory * kGibi;
  }
  if (const auto rate = positive("--memory-bandwidth-gbytes")) {
    device.memory_bandwidth = *rate * kGiga;
  }
  if (const auto rate = positive("--node-bandwidth-gbytes")) {
    device.node_bandwidth = *rate * kGiga;
  }
  if (const auto rate = positive("--network-bandwidth-gbytes")) {
    device.network_bandwidth = *rate * kGiga;
  }
  return device;
}

plan::Job PlanOptions::read_job() const {
  plan::Job job;
  job.strategy = choose(
      "--strategy", strategies(), text("--strategy"), Strategy::kFullShard);
  job.shard_size = count_or("--shard-size", 0);
  if (text("--shard-size") && job.shard_size == 0) {
    refuse_value("--shard-size", *text("--shard-size"), "1 or more");
  }
  job.precision = choose(
      "--precision",
      precisions(),
      text("--precision"),
      Precision{.compute = DType::kBFloat16});
  job.optimizer = choose(
      "--optimizer", optimizers(), text("--optimizer"), OptimizerKind::kAdamW);
  job.transport = choose(
      "--backend", transports(), text("--backend"), Transport::kCollectives);
  job.runtime = choose(
      "--runtime", runtimes(), text("--runtime"), plan::Runtime::kLibfsdp);
  job.cpu_offload = is_on("--offload");
  job.micro_batch = count_or("--batch", 1);
  job.accumulation = count_or("--accumulation", 1);
  job.sync_every_pass = !is_on("--no-sync");
  job.checkpointing = choose(
      "--checkpointing",
      checkpointings(),
      text("--checkpointing"),
      Checkpointing::kNone);
  job.fused_attention =
      choose("--attention", attentions(), text("--attention"), true);
  job.compiled = is_on("--compile");
  job.fused_loss = is_on("--fused-loss");
  job.checkpointed_blocks = count_or("--checkpointed-blocks", 0);
  const std::int64_t prefetch = count_or("--prefetch", 1);
  constexpr std::int64_t kMostPrefetch = 1'000'000;
  if (prefetch > kMostPrefetch) {
    throw ConfigError(
        "--prefetch is " + std::to_string(prefetch) + ": expected 0 to " +
        std::to_string(kMostPrefetch));
  }
  job.prefetch_depth = static_cast<int>(prefetch);
  return job;
}

void PlanOptions::read_lengths(
    const plan::ModelShape& model, plan::Job& job) const {
  const std::int64_t positions =
      model.transformer ? model.transformer->positions : 0;
  job.seq_len = count_or(
      "--seq", positions > 0 ? std::min(positions, kDefaultSeq) : kDefaultSeq);
  if (positions > 0 && job.seq_len > positions) {
    throw ConfigError(
        "--seq " + std::to_string(job.seq_len) + ": model '" + model.name +
        "' has " + std::to_string(positions) +
        " positions; choose a shorter sequence");
  }
}

void PlanOptions::refuse_without_effect(
    const plan::ModelShape& model, const plan::Job& job) const {
  for (const char* flag : kActivationFlags) {
    if (!model.transformer && text(flag)) {
      throw ConfigError(
          std::string(flag) +
          " with a file of weights, which does not tell what a pass keeps: "
          "give the model's config.json");
    }
  }
  if (!job.sync_every_pass && job.accumulation == 1) {
    throw ConfigError(
        "--no-sync without --accumulation: expected 2 passes or more");
  }
  if (job.checkpointing == Checkpointing::kNone &&
      text("--checkpointed-blocks")) {
    throw ConfigError(
        "--checkpointed-blocks with --checkpointing none: nothing is "
        "checkpointed there");
  }
  if (job.strategy == Strategy::kNoShard && text("--prefetch")) {
    throw ConfigError(
        "--prefetch with --strategy no_shard: nothing is gathered there");
  }
  if (job.transport == Transport::kSharedMemory && job.cpu_offload) {
    throw ConfigError(
        "--offload with --backend shm: its shards are in the host's memory");
  }
}

PlanRequest PlanOptions::read() const {
  PlanRequest request;
  request.job = read_job();
  request.model = read_model();
  read_lengths(request.model, request.job);
  request.cluster.device = read_device(request.job.precision);
  request.cluster.nodes = count_or("--nodes", 1);
  request.cluster.devices_per_node =
      count_or("--gpus-per-node", request.cluster.device.devices_per_node);
  refuse_without_effect(request.model, request.job);
  check(request.job, request.cluster);
  return request;
}

} // namespace fsdp::cli
