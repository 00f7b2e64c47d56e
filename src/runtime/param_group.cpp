#include "runtime/param_group.h"

#include <algorithm>

#include "core/align.h"

namespace fsdp {

void ParamGroup::lay_out() {
  constexpr std::size_t kAlignment = 64;
  offsets.clear();
  gathered_bytes = 0;
  for (const auto& param : params) {
    offsets.push_back(gathered_bytes);
    gathered_bytes += align_up(param->compute_bytes(), kAlignment);
  }
}

std::int64_t ParamGroup::numel() const {
  std::int64_t total = 0;
  for (const auto& param : params) {
    total += param->full_numel();
  }
  return total;
}

std::string ParamGroup::describe() const {
  return unit.empty() ? "the root unit" : "unit '" + unit + "'";
}

ReductionTypes reduction_types(const ParamGroup& group) {
  const auto trainable = std::find_if(
      group.params.begin(), group.params.end(), [](const auto& param) {
        return param->is_reduced();
      });
  const auto& param =
      trainable == group.params.end() ? group.params.front() : *trainable;
  const auto compute = param->compute_dtype();
  const auto reduce = param->reduce_dtype();
  const bool sum_can_widen = reduce == compute || reduce == c10::kFloat;
  const auto wire =
      group.has_unreduced_backward || !sum_can_widen ? reduce : compute;
  return {wire, reduce};
}

} // namespace fsdp
