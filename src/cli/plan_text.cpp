// The tables of `fsdp plan`.

#include <algorithm>
#include <string>

#include "cli/plan_report.h"
#include "cli/table.h"
#include "cli/units.h"

namespace fsdp::cli {

namespace {

std::string bytes(std::int64_t number) {
  return bytes_text(static_cast<double>(number));
}

std::string yes_or_no(bool is) {
  return is ? "yes" : "no";
}

std::size_t num_tensors(const plan::ModelShape& model) {
  std::size_t number = model.root.params.size();
  for (const plan::UnitShape& block : model.blocks) {
    number += block.params.size();
  }
  return number;
}

std::string precision_text(const plan::Precision& precision) {
  return std::string(name_of(precision.compute)) +
         (precision.fp8_matmuls ? " with float8 products" : "") +
         ", reduced in " + std::string(name_of(precision.reduce)) +
         ", kept in " + std::string(name_of(precision.master));
}

std::string mesh_text(const plan::Job& job, const plan::Cluster& cluster) {
  const std::int64_t shard = shard_ranks(job, cluster);
  const std::int64_t replicas = cluster.world_size() / shard;
  return (replicas > 1 ? std::to_string(replicas) + " x " : "") +
         std::to_string(shard);
}

std::string model_text(const plan::ModelShape& model) {
  return model.name + ": " + std::to_string(model.num_params()) +
         " parameters (" + count_text(static_cast<double>(model.num_params())) +
         ") in " + std::to_string(num_tensors(model)) + " tensors, " +
         std::to_string(model.blocks.size()) + " blocks";
}

std::string devices_text(const plan::Cluster& cluster) {
  const double memory = cluster.device.memory_bytes;
  return std::to_string(cluster.nodes) + " node(s) x " +
         std::to_string(cluster.devices_per_node) + " " + cluster.device.name +
         (memory > 0 ? ", " + bytes_text(memory) + " each" : "");
}

std::string job_text(const plan::Job& job, const plan::Cluster& cluster) {
  return std::string(name_of(job.strategy)) + " over " +
         mesh_text(job, cluster) + " rank(s), " +
         std::string(name_of(job.optimizer)) + ", " +
         precision_text(job.precision) + ", " +
         std::string(name_of(job.runtime)) + " over " +
         std::string(name_of(job.transport)) + ", prefetch " +
         std::to_string(job.prefetch_depth) +
         (job.cpu_offload ? ", offload" : "");
}

std::string step_text(const plan::Job& job) {
  return std::to_string(job.accumulation) + " pass(es) of " +
         std::to_string(job.micro_batch) + " x " + std::to_string(job.seq_len) +
         " tokens a rank" +
         (job.sync_every_pass ? "" : ", the last one reduces") +
         ", checkpointing " + std::string(name_of(job.checkpointing)) + ", " +
         (job.fused_attention ? "fused" : "plain") + " attention" +
         (job.compiled ? ", compiled" : "");
}

std::string head_of(const PlanRequest& request) {
  constexpr std::size_t kColumn = 9;
  std::string text;
  for (const auto& [name, words] : facts_of(request)) {
    text += name + std::string(kColumn - name.size(), ' ') + words + "\n";
  }
  return text;
}

std::string memory_table(const PlanReport& report) {
  const plan::MemoryEstimate& memory = report.chosen.memory;
  Table table({"component", "memory"});
  for (const plan::MemoryPart& component : parts_of(memory)) {
    if (component.bytes > 0) {
      table.add({component.name, bytes(component.bytes)});
    }
  }
  const bool at_loss = memory.total_at_loss() >= memory.total_in_backward();
  table.add(
      {std::string("at most at once, ") +
           (at_loss ? "at the loss" : "in the backward"),
       bytes(memory.total())});
  std::string text = "\nmemory of rank 0\n" + table.text();
  if (memory.shared_per_node > 0) {
    text += "  and in the host's memory, for all its ranks: " +
            bytes(memory.shared_per_node) + "\n";
  }
  if (memory.host > 0) {
    text += "  and in the host's memory, for this rank: " + bytes(memory.host) +
            "\n";
  }
  if (!report.request.model.transformer) {
    text +=
        "  without activations and logits, which a file of weights does "
        "not tell\n";
  }
  return text + "  " + verdict_of(report.request, memory) + "\n";
}

std::string traffic_table(const PlanReport& report) {
  const plan::TrafficEstimate& traffic = report.chosen.traffic;
  std::string text = "\ntraffic of rank 0, a step\n";
  if (traffic.lines.empty()) {
    return text + "  none\n";
  }
  Table table(
      {"collective", "of", "where", "ranks", "calls", "tensors", "sent"}, 3);
  for (const plan::TrafficLine& line : traffic.lines) {
    table.add(
        {std::string(name_of(line.collective)),
         std::string(name_of(line.payload)),
         line.between_nodes ? "between nodes" : "in a node",
         std::to_string(line.group_size),
         std::to_string(line.calls),
         bytes(line.tensor_bytes),
         bytes(line.sent_bytes)});
  }
  return text + table.text() + "  in all " + bytes(traffic.sent_bytes()) +
         " sent, " + bytes(traffic.sent_between_nodes()) +
         " of it over this rank's link to other nodes\n";
}

std::string strategy_table(const PlanReport& report) {
  Table table(
      {"strategy", "ranks", "states", "memory", "fits", "sent", "to nodes"}, 2);
  for (const Alternative& way : report.alternatives) {
    const auto spare = spare_bytes(report.request, way.memory);
    table.add(
        {std::string(name_of(way.job.strategy)),
         mesh_text(way.job, report.request.cluster),
         bytes(
             way.memory.parameters + way.memory.gradients +
             way.memory.optimizer),
         bytes(way.memory.total()),
         spare ? yes_or_no(*spare >= 0) : "?",
         bytes(way.traffic.sent_bytes()),
         bytes(way.traffic.sent_between_nodes())});
  }
  return "\nall strategies\n" + table.text();
}

} // namespace

std::vector<std::pair<std::string, std::string>> facts_of(
    const PlanRequest& request) {
  return {
      {"model", model_text(request.model)},
      {"devices", devices_text(request.cluster)},
      {"job", job_text(request.job, request.cluster)},
      {"step", step_text(request.job)}};
}

std::string verdict_of(
    const PlanRequest& request, const plan::MemoryEstimate& memory) {
  const auto spare = spare_bytes(request, memory);
  if (!spare) {
    return "whether it fits is not known: give --device or --memory-gib";
  }
  if (*spare < 0 && *spare + memory.overhead >= 0) {
    return "does not fit: " + bytes(-*spare) +
           " too much, unless the allocator frees memory and asks again";
  }
  if (*spare < 0) {
    return "does not fit: " + bytes(-*spare) + " too much";
  }
  std::string text = "fits, " + bytes(*spare) + " to spare";
  if (is_crowded(memory, request.cluster.device)) {
    text +=
        "; so near the limit the allocator frees memory and asks again, which "
        "made published runs 20 % slower";
  }
  return text;
}

std::string text_of(const PlanReport& report) {
  return head_of(report.request) + memory_table(report) +
         traffic_table(report) + strategy_table(report);
}

} // namespace fsdp::cli
