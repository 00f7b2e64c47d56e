#include "plan/compute_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "fsdp/error.h"
#include "plan/compute_work.h"
#include "plan/constants.h"

namespace fsdp::plan {

namespace {

struct Rates {
  double linear = 0; ///< FLOP/s of the blocks' products
  double head = 0;   ///< of the head's, which stays out of fp8
  double attention = 0;
  double memory = 0; ///< bytes/s
};

double attention_rate(
    const Device& device,
    const Job& job,
    const Transformer& transformer,
    double matmul) {
  if (!job.fused_attention) {
    // Products along a head, whose length is short.
    const auto length = static_cast<double>(transformer.head_dim);
    return matmul * length / (length + kHalfRateLength);
  }
  double share =
      job.flash_generation == 1 ? kFlashAttention1 : kFlashAttention2;
  if (device.is_hopper_or_later) {
    share *= kFlashAttention2OnHopper / kFlashAttention2;
  }
  return std::min(share * device.peak(job.precision.compute), matmul);
}

Rates rates_of(
    const Device& device, const Job& job, const Transformer& transformer) {
  if (!(device.memory_bandwidth > 0)) {
    throw ConfigError(
        "device '" + device.name +
        "' has no memory bandwidth, which the time of a step needs: give it "
        "by a flag, or choose another device");
  }
  Rates rates;
  rates.head = matmul_rate(device, job.precision.compute);
  rates.linear = job.precision.fp8_matmuls ? matmul_rate(device, DType::kFloat8)
                                           : rates.head;
  rates.memory = device.memory_bandwidth * kMemoryShare;
  rates.attention = attention_rate(device, job, transformer, rates.head);
  return rates;
}

/// Share of the rate that a product of so many FLOPs reaches, relative to a
/// large one; between the points of Calculon's table by the logarithm.
double size_share(double flops) {
  const double top = kMatmulSizes.back().share;
  if (flops <= kMatmulSizes.front().flops) {
    return kMatmulSizes.front().share / top;
  }
  for (std::size_t i = 1; i < kMatmulSizes.size(); ++i) {
    const MatmulSize& low = kMatmulSizes[i - 1];
    const MatmulSize& high = kMatmulSizes[i];
    if (flops <= high.flops) {
      const double way =
          std::log(flops / low.flops) / std::log(high.flops / low.flops);
      return (low.share + way * (high.share - low.share)) / top;
    }
  }
  return 1;
}

/// Forward seconds of one product over `tokens`.
double linear_seconds(
    const Linear& linear,
    double tokens,
    double rate,
    double element,
    const Rates& rates) {
  const double own = tokens * linear.token_share;
  const double flops = 2 * linear.in * linear.out * own;
  const double bytes =
      element * (own * (linear.in + linear.out) + linear.in * linear.out);
  const double length_share = linear.in / (linear.in + kHalfRateLength);
  return linear.count * (flops / (rate * size_share(flops) * length_share) +
                         bytes / rates.memory);
}

struct Forward {
  double linears = 0;
  double dropped = 0; ///< those of them that selective checkpointing repeats
  double elements = 0;
};

UnitTime unit_time(
    const BlockWork& work,
    const Job& job,
    double linear_rate,
    const Rates& rates,
    bool checkpointed) {
  const double tokens =
      static_cast<double>(job.micro_batch) * static_cast<double>(job.seq_len);
  const auto element = static_cast<double>(size_of(job.precision.compute));
  Forward forward;
  for (const Linear& linear : work.linears) {
    const double seconds =
        linear_seconds(linear, tokens, linear_rate, element, rates);
    forward.linears += seconds;
    forward.dropped += linear.dropped_by_selective ? seconds : 0;
  }
  const double attention = work.attention_flops * tokens;
  forward.elements = work.forward_bytes * tokens / rates.memory;

  UnitTime time;
  time.forward =
      forward.linears + attention / rates.attention + forward.elements;
  // Fused attention computes its scores again.
  const double attention_backward = (job.fused_attention ? 2.5 : 2) * attention;
  time.backward = 2 * forward.linears + attention_backward / rates.attention +
                  work.backward_bytes * tokens / rates.memory;
  if (checkpointed && job.checkpointing == Checkpointing::kFull) {
    time.recompute = time.forward;
  } else if (checkpointed && job.checkpointing == Checkpointing::kSelective) {
    time.recompute = forward.dropped + forward.elements;
  }
  return time;
}

/// Rows are looked up, and their gradients added.
UnitTime embedding_time(
    const Transformer& transformer, const Job& job, const Rates& rates) {
  const double bytes = static_cast<double>(job.micro_batch) *
                       static_cast<double>(job.seq_len) *
                       static_cast<double>(transformer.hidden) *
                       static_cast<double>(size_of(job.precision.compute));
  return {2 * bytes / rates.memory, 0, 3 * bytes / rates.memory};
}

} // namespace

double matmul_rate(const Device& device, DType dtype) {
  const double peak = device.peak(dtype);
  const bool is_measured = device.best_matmul_bf16 > 0 && device.peak_bf16 > 0;
  const double best = is_measured ? device.best_matmul_bf16 / device.peak_bf16
                                  : double{kBestMatmulOfPeak};
  return peak * best *
         (device.is_hopper_or_later ? double{kSustainedShare} : 1);
}

double optimizer_time(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  // Reads parameter, gradient and state, writes parameter and state.
  const double touched = job.optimizer == OptimizerKind::kAdamW         ? 7
                         : job.optimizer == OptimizerKind::kSgdMomentum ? 5
                                                                        : 3;
  const double local = static_cast<double>(model.num_params()) /
                       static_cast<double>(shard_ranks(job, cluster));
  const double rate = job.cpu_offload
                          ? double{kHostMemoryBandwidth}
                          : cluster.device.memory_bandwidth * kMemoryShare;
  return local * touched * static_cast<double>(size_of(job.precision.master)) /
         rate;
}

ComputeTimes compute_times(
    const ModelShape& model, const Job& job, const Cluster& cluster) {
  if (!model.transformer) {
    throw ConfigError(
        "model '" + model.name +
        "' is known by its tensors only, and the time of a step needs its "
        "layers, heads and widths: name a model or give its config.json");
  }
  const Transformer& transformer = *model.transformer;
  const auto blocks = static_cast<std::int64_t>(model.blocks.size());
  if (blocks != transformer.layers + transformer.encoder_layers) {
    throw ConfigError(
        "model '" + model.name + "' has " + std::to_string(blocks) +
        " blocks of parameters but " +
        std::to_string(transformer.layers + transformer.encoder_layers) +
        " layers: describe the same model");
  }
  const Rates rates = rates_of(cluster.device, job, transformer);
  const auto time_of = [&](BlockKind kind) {
    return unit_time(
        block_work(transformer, kind, job), job, rates.linear, rates, true);
  };
  const std::array kinds{
      time_of(BlockKind::kPlain), time_of(BlockKind::kWithCrossAttention)};
  ComputeTimes times;
  for (std::int64_t i = 0; i < blocks; ++i) {
    UnitTime time =
        kinds[static_cast<std::size_t>(kind_of_block(transformer, i))];
    if (!is_checkpointed(job, i)) {
      time.recompute = 0;
    }
    times.blocks.push_back(time);
  }
  times.embedding = embedding_time(transformer, job, rates);
  times.head =
      unit_time(head_work(transformer, job), job, rates.head, rates, false);
  times.optimizer = optimizer_time(model, job, cluster);
  const double tokens =
      static_cast<double>(job.micro_batch) * static_cast<double>(job.seq_len);
  times.model_flops =
      tokens * model_flops_per_token(transformer, model.num_params(), job);
  times.recompute_flops = tokens * recompute_flops_per_token(transformer, job);
  return times;
}

} // namespace fsdp::plan
