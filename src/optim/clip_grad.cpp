#include "fsdp/clip_grad.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "runtime/param_registry.h"

namespace fsdp {

namespace {

/// The gradients that one group of ranks shares; no group: whole ones.
struct Shards {
  const ProcessGroup* group;
  std::vector<at::Tensor> grads;
};

/// In the order of the module's parameters, so that every rank meets its groups
/// in the same order, with or without gradients.
std::vector<Shards> shards_by_group(const torch::nn::Module& module) {
  std::vector<Shards> all;
  for (const auto& parameter : module.parameters()) {
    const ProcessGroup* group = shard_group_of(parameter);
    const auto same_group = [group](const Shards& shards) {
      return group && shards.group
          ? &shards.group->communicator() == &group->communicator()
          : shards.group == group;
    };
    auto found = std::find_if(all.begin(), all.end(), same_group);
    if (found == all.end()) {
      found = all.insert(all.end(), Shards{group, {}});
    }
    if (parameter.grad().defined()) {
      found->grads.push_back(parameter.grad());
    }
  }
  return all;
}

/// Partial norms add up as sums of p-th powers, or as a maximum.
class PartialNorm {
 public:
  explicit PartialNorm(double p) : p_(p) {}

  void add_power(double power) {
    total_ = std::isinf(p_) ? larger(total_, power) : total_ + power;
  }
  void add(const at::Tensor& grad) {
    if (grad.numel() > 0) {
      const double norm =
          at::linalg_vector_norm(grad, p_, {}, false, at::kDouble)
              .item<double>();
      add_power(std::isinf(p_) ? norm : std::pow(norm, p_));
    }
  }
  double power() const { return total_; }
  double norm() const {
    return std::isinf(p_) ? total_ : std::pow(total_, 1.0 / p_);
  }

 private:
  static double larger(double a, double b) {
    return std::isnan(a) || std::isnan(b)
        ? std::numeric_limits<double>::quiet_NaN()
        : std::max(a, b);
  }

  double p_;
  double total_ = 0;
};

/// Each rank's partial, by rank.
std::vector<double> gather(const ProcessGroup& group, double value) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<double> values(size);
  const std::vector<std::int64_t> counts(size, 1);
  group.communicator()
      .all_gather(
          &value, values.data(), counts, DType::kFloat64, "clip_grad_norm_")
      ->wait();
  return values;
}

} // namespace

double clip_grad_norm_(
    torch::nn::Module& module,
    double max_norm,
    double norm_type,
    bool error_if_nonfinite) {
  if (!(norm_type > 0)) {
    throw UsageError(
        "clip_grad_norm_: norm_type is " + std::to_string(norm_type) +
        "; it must be greater than 0, or infinity");
  }
  c10::AutoGradMode grad_off(false);
  const auto all = shards_by_group(module);
  PartialNorm total(norm_type);
  std::string nonfinite_ranks;
  for (const Shards& shards : all) {
    PartialNorm local(norm_type);
    for (const auto& grad : shards.grads) {
      local.add(grad);
    }
    if (!shards.group) {
      total.add_power(local.power());
      continue;
    }
    const auto partials = gather(*shards.group, local.power());
    for (std::size_t rank = 0; rank < partials.size(); ++rank) {
      total.add_power(partials[rank]);
      if (!std::isfinite(partials[rank])) {
        nonfinite_ranks +=
            (nonfinite_ranks.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
  }
  const double norm = total.norm();
  if (!std::isfinite(norm)) {
    if (error_if_nonfinite) {
      throw Error(
          "clip_grad_norm_: the norm of the gradients is " +
          std::to_string(norm) + ", not finite on rank " +
          (nonfinite_ranks.empty() ? "all" : nonfinite_ranks) +
          "; the gradients were left as they are: skip this step, or lower the "
          "learning rate");
    }
    return norm;
  }
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) {
    for (const Shards& shards : all) {
      for (const auto& grad : shards.grads) {
        grad.mul_(scale);
      }
    }
  }
  return norm;
}

} // namespace fsdp
