#include "fsdp/clip_grad.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/error_text.h"
#include "fsdp/error.h"
#include "optim/option_checks.h"
#include "runtime/param_registry.h"
#include "runtime/sharded_param.h"
#include "runtime/type_name.h"

namespace fsdp {
namespace {

/// The gradients of the parameters that one group shares; no group: whole ones.
struct GroupGrads {
  const ProcessGroup* group = nullptr;
  c10::Device device = c10::kCPU;
  std::vector<at::Tensor> grads;
};

// In the order of the module's parameters, so that every rank meets its groups
// in the same order, whether it has gradients or not. Tied parameters are
// listed by each module that has them and count once.
std::vector<GroupGrads> grads_by_group(const torch::nn::Module& module) {
  std::vector<GroupGrads> all;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    const ProcessGroup* group = shard_group_of(parameter);
    auto found =
        std::find_if(all.begin(), all.end(), [group](const GroupGrads& other) {
          return group && other.group
                     ? &other.group->communicator() == &group->communicator()
                     : other.group == group;
        });
    if (found == all.end()) {
      // A parameter that still waits for memory is on the meta device.
      const ShardedParam* param = find_sharded_param(parameter);
      found = all.insert(
          all.end(),
          GroupGrads{group, param ? param->device() : parameter.device(), {}});
    }
    if (parameter.grad().defined()) {
      found->grads.push_back(parameter.grad());
    }
  }
  return all;
}

/// The p-norm of a vector from the p-norms of its parts, without the overflow
/// that a sum of p-th powers has.
double combine(const std::vector<double>& norms, double p) {
  double largest = 0;
  for (const double norm : norms) {
    if (std::isnan(norm)) {
      return norm;
    }
    largest = std::max(largest, norm);
  }
  if (std::isinf(p) || largest == 0 || std::isinf(largest)) {
    return largest;
  }
  double sum = 0;
  for (const double norm : norms) {
    sum += std::pow(norm / largest, p);
  }
  return largest * std::pow(sum, 1 / p);
}

double largest_of(const at::Tensor& values) {
  const auto [smallest, largest] = at::aminmax(values);
  return combine(
      {std::abs(smallest.item<double>()), std::abs(largest.item<double>())},
      std::numeric_limits<double>::infinity());
}

double direct_norm(const at::Tensor& values, double p, at::ScalarType dtype) {
  return at::linalg_vector_norm(values, p, {}, false, dtype).item<double>();
}

// One long sum in float32 is off by 1e-4 at a few million elements, and in
// float64 it takes ten times as long: so float32 inside rows of this length,
// float64 over the rows.
constexpr std::int64_t kRowNumel = 4096;

double row_wise_norm(const at::Tensor& flat, double p) {
  if (flat.scalar_type() == at::kDouble) {
    return direct_norm(flat, p, at::kDouble);
  }
  const std::int64_t in_rows = flat.numel() / kRowNumel * kRowNumel;
  std::vector<double> parts;
  if (in_rows > 0) {
    const at::Tensor rows = flat.narrow(0, 0, in_rows).view({-1, kRowNumel});
    const at::Tensor norms =
        at::linalg_vector_norm(rows, p, 1, false, at::kFloat);
    parts.push_back(direct_norm(norms.to(at::kDouble), p, at::kDouble));
  }
  if (in_rows < flat.numel()) {
    const at::Tensor rest = flat.narrow(0, in_rows, flat.numel() - in_rows);
    parts.push_back(direct_norm(rest, p, at::kFloat));
  }
  return combine(parts, p);
}

double norm_of(const at::Tensor& grad, double p) {
  if (grad.numel() == 0) {
    return 0;
  }
  if (std::isinf(p)) {
    return largest_of(grad);
  }
  const at::Tensor flat = grad.reshape({-1});
  if (p == 1 || p == 2) {
    const double norm = row_wise_norm(flat, p);
    constexpr double kSquareFitsFloat = 1e-12;
    if (std::isfinite(norm) && norm > kSquareFitsFloat) {
      return norm;
    }
  }
  // Powers that float32 cannot hold, too large or too small.
  const double largest = largest_of(flat);
  if (largest == 0 || !std::isfinite(largest)) {
    return largest;
  }
  const at::Tensor wide =
      flat.scalar_type() == at::kDouble ? flat : flat.to(at::kFloat);
  return largest * row_wise_norm(wide / largest, p);
}

double norm_of_all(const std::vector<at::Tensor>& grads, double p) {
  std::vector<double> norms;
  for (const at::Tensor& grad : grads) {
    norms.push_back(norm_of(grad, p));
  }
  return combine(norms, p);
}

/// Each rank's two numbers, by rank.
std::vector<std::pair<double, double>> gather(
    const ProcessGroup& group,
    const std::string& call,
    c10::Device device,
    double first,
    double second) {
  const std::int64_t size = group.size();
  const at::TensorOptions options = at::TensorOptions(at::kDouble);
  at::Tensor own = at::empty({2}, options);
  own[0] = first;
  own[1] = second;
  own = own.to(device);
  at::Tensor all = at::empty({size, 2}, options.device(device));
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), 2);
  group.communicator()
      .all_gather(
          own.const_data_ptr(),
          all.mutable_data_ptr(),
          counts,
          DType::kFloat64,
          call)
      ->wait();
  all = all.cpu();
  std::vector<std::pair<double, double>> by_rank;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    by_rank.emplace_back(
        all[rank][0].item<double>(), all[rank][1].item<double>());
  }
  return by_rank;
}

/// The global norm, and the world ranks whose own part of it is not finite.
struct GlobalNorm {
  double value = 0;
  int rank = 0; ///< this one's, in the world
  std::vector<int> nonfinite_ranks;
};

/// `call` names the arguments, which every rank must give alike.
GlobalNorm global_norm(
    const std::vector<GroupGrads>& all, double p, const std::string& call) {
  GlobalNorm result;
  double whole = 0;
  for (const GroupGrads& part : all) {
    if (!part.group) {
      whole = norm_of_all(part.grads, p);
    }
  }
  std::vector<double> norms;
  bool whole_is_counted = false;
  for (const GroupGrads& part : all) {
    if (!part.group) {
      continue;
    }
    // Whole parameters count as the first rank has them, so that every rank
    // gets the same number even where their gradients differ.
    const auto by_rank = gather(
        *part.group,
        call,
        part.device,
        norm_of_all(part.grads, p),
        whole_is_counted ? 0 : whole);
    norms.push_back(by_rank.front().second);
    whole_is_counted = true;
    const std::vector<int>& world_ranks = part.group->world_ranks();
    result.rank = world_ranks[static_cast<std::size_t>(part.group->rank())];
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      norms.push_back(by_rank[rank].first);
      if (!std::isfinite(by_rank[rank].first + by_rank[rank].second)) {
        result.nonfinite_ranks.push_back(world_ranks[rank]);
      }
    }
  }
  result.value = combine(norms, p);
  // A whole gradient that is not finite on another rank than the first.
  if (std::isfinite(result.value) && !result.nonfinite_ranks.empty()) {
    result.value = std::numeric_limits<double>::quiet_NaN();
  }
  auto& ranks = result.nonfinite_ranks;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return result;
}

[[noreturn]] void throw_nonfinite(const GlobalNorm& norm) {
  std::ostringstream text;
  text << rank_prefix(norm.rank) << "clip_grad_norm_: the gradients' norm is "
       << norm.value << ", expected a finite one; ";
  if (norm.nonfinite_ranks.empty()) {
    text << "every rank's own norm is finite";
  } else {
    text << "not finite on " << name_ranks(norm.nonfinite_ranks);
  }
  text << "; no gradient was changed: skip this step, or lower the learning "
          "rate";
  throw Error(text.str());
}

} // namespace

double clip_grad_norm_(
    torch::nn::Module& module,
    double max_norm,
    double norm_type,
    bool error_if_nonfinite) {
  constexpr const char* kName = "clip_grad_norm_";
  optim::require(
      norm_type > 0,
      kName,
      "norm_type",
      norm_type,
      "a number above 0, or infinity");
  optim::require(
      max_norm >= 0, kName, "max_norm", max_norm, "a number of at least 0");
  const at::NoGradGuard no_grad;
  const std::vector<GroupGrads> all = grads_by_group(module);
  // Without a group the ranks could not agree on a norm.
  if (std::ranges::none_of(all, &GroupGrads::group)) {
    throw UsageError(
        "clip_grad_norm_: no unit manages a parameter of module '" +
        type_name(module) + "'; call fully_shard first");
  }
  std::ostringstream call;
  call << std::setprecision(17) << kName << "(max_norm " << max_norm
       << ", norm_type " << norm_type
       << (error_if_nonfinite ? ", error_if_nonfinite)" : ")");
  const GlobalNorm norm = global_norm(all, norm_type, call.str());
  if (!std::isfinite(norm.value)) {
    if (error_if_nonfinite) {
      throw_nonfinite(norm);
    }
    return norm.value;
  }
  const double scale = max_norm / (norm.value + 1e-6);
  if (scale < 1) {
    for (const GroupGrads& part : all) {
      for (const at::Tensor& grad : part.grads) {
        grad.mul_(scale);
      }
    }
  }
  return norm.value;
}

} // namespace fsdp
