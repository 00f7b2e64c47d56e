// What a sharded module tells about itself.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <chrono>
#include <set>
#include <unordered_map>

#include "comm/c10d/run_together.h"
#include "comm/c10d/scalar_type.h"
#include "fsdp/error.h"
#include "fsdp/fully_shard.h"
#include "runtime/name_list.h"
#include "runtime/param_registry.h"
#include "runtime/unit.h"

namespace fsdp {

std::vector<ShardInfo> shard_infos(const torch::nn::Module& module) {
  std::vector<ShardInfo> infos;
  for (const auto& entry : module.named_parameters()) {
    if (const ShardedParam* param = find_sharded_param(entry.value())) {
      infos.push_back(
          {.name = entry.key(),
           .full_sizes = param->full_sizes(),
           .row_begin = param->rows().begin,
           .num_rows = param->rows().length});
    }
  }
  return infos;
}

namespace {

/// [collective]
at::Tensor full_value(const ShardedParam& param) {
  const ProcessGroup& group = param.process_group();
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < group.size(); ++rank) {
    counts.push_back(param.rows(rank).length * param.row_numel());
  }
  const at::Tensor local =
      (param.is_unsharded() ? param.local() : param.registered())
          .detach()
          .contiguous();
  at::Tensor full = at::empty(param.full_sizes(), local.options());
  group.communicator()
      .all_gather(
          local.const_data_ptr(),
          full.mutable_data_ptr(),
          counts,
          to_dtype(local.scalar_type()),
          param.describe())
      ->wait();
  return full;
}

std::vector<std::string> names_without_memory(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& entry : module.named_parameters()) {
    if (entry.value().is_meta()) {
      names.push_back(entry.key());
    }
  }
  return names;
}

} // namespace

std::vector<std::pair<std::string, at::Tensor>> full_parameters(
    torch::nn::Module& module) {
  c10::AutoGradMode grad_off(false);
  const auto require_memory = [names = names_without_memory(module)] {
    if (!names.empty()) {
      throw UsageError(
          "full_parameters: " + name_list(names) +
          ": still on the meta device; call materialize() or to_empty() first");
    }
  };
  std::unordered_map<const c10::TensorImpl*, at::Tensor> full;
  for (const auto& child : module.modules()) {
    const auto unit = unit_of(*child);
    if (!unit || unit->param_group().params.empty()) {
      continue;
    }
    const auto& params = unit->param_group().params;
    run_together(params.front()->process_group(), [&] {
      require_memory();
      for (const auto& param : params) {
        full.emplace(
            param->registered().unsafeGetTensorImpl(), full_value(*param));
      }
    });
  }
  require_memory();
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const auto& entry : module.named_parameters()) {
    const auto found = full.find(entry.value().unsafeGetTensorImpl());
    named.emplace_back(
        entry.key(),
        found == full.end() ? entry.value().detach().clone() : found->second);
  }
  return named;
}

RuntimeCounters runtime_counters(const torch::nn::Module& module) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  RuntimeCounters counters;
  std::set<const ShardEngine*> engines;
  for (const auto& child : module.modules()) {
    const auto unit = unit_of(*child);
    if (!unit) {
      continue;
    }
    counters.num_unshards += unit->num_unshards();
    counters.num_reductions += unit->num_reductions();
    const ShardEngine& engine = unit->tree().engine();
    if (engines.insert(&engine).second) {
      counters.wait_ms +=
          Milliseconds(engine.communicator().counters().waited).count();
      counters.reduce_ms += Milliseconds(engine.reduce_time()).count();
    }
  }
  return counters;
}

} // namespace fsdp
