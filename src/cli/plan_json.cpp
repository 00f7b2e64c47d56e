// The JSON document of `fsdp plan --json`.

#include <nlohmann/json.hpp>
#include <string>

#include "cli/plan_report.h"

namespace fsdp::cli {

namespace {

using Json = nlohmann::ordered_json;

Json json_of_memory(
    const PlanRequest& request, const plan::MemoryEstimate& memory) {
  Json json;
  for (const plan::MemoryPart& component : parts_of(memory)) {
    json[component.name] = component.bytes;
  }
  json["total"] = memory.total();
  json["total_at_loss"] = memory.total_at_loss();
  json["total_in_backward"] = memory.total_in_backward();
  json["shared_per_node"] = memory.shared_per_node;
  json["host"] = memory.host;
  const auto spare = spare_bytes(request, memory);
  json["spare"] = spare ? Json(*spare) : Json(nullptr);
  json["crowded"] = is_crowded(memory, request.cluster.device);
  json["fits"] = spare ? Json(*spare >= 0) : Json(nullptr);
  return json;
}

Json json_of_traffic(const plan::TrafficEstimate& traffic) {
  Json lines = Json::array();
  for (const plan::TrafficLine& line : traffic.lines) {
    lines.push_back(
        {{"collective", name_of(line.collective)},
         {"payload", name_of(line.payload)},
         {"between_nodes", line.between_nodes},
         {"group_size", line.group_size},
         {"ranks_per_node", line.ranks_per_node},
         {"calls", line.calls},
         {"tensor_bytes", line.tensor_bytes},
         {"sent_bytes", line.sent_bytes}});
  }
  return {
      {"lines", lines},
      {"sent_bytes", traffic.sent_bytes()},
      {"sent_between_nodes", traffic.sent_between_nodes()}};
}

Json json_of_job(const plan::Job& job, const plan::Cluster& cluster) {
  return {
      {"strategy", name_of(job.strategy)},
      {"shard_size", shard_ranks(job, cluster)},
      {"master_dtype", name_of(job.precision.master)},
      {"compute_dtype", name_of(job.precision.compute)},
      {"reduce_dtype", name_of(job.precision.reduce)},
      {"fp8_matmuls", job.precision.fp8_matmuls},
      {"optimizer", name_of(job.optimizer)},
      {"backend", name_of(job.transport)},
      {"runtime", name_of(job.runtime)},
      {"offload", job.cpu_offload},
      {"batch", job.micro_batch},
      {"seq", job.seq_len},
      {"accumulation", job.accumulation},
      {"sync_every_pass", job.sync_every_pass},
      {"checkpointing", name_of(job.checkpointing)},
      {"checkpointed_blocks", job.checkpointed_blocks},
      {"fused_attention", job.fused_attention},
      {"fused_loss", job.fused_loss},
      {"compiled", job.compiled},
      {"prefetch", job.prefetch_depth}};
}

Json json_of_way(const PlanRequest& request, const Alternative& way) {
  return {
      {"job", json_of_job(way.job, request.cluster)},
      {"memory", json_of_memory(request, way.memory)},
      {"traffic", json_of_traffic(way.traffic)}};
}

} // namespace

std::string json_of(const PlanReport& report) {
  const PlanRequest& request = report.request;
  const plan::Cluster& cluster = request.cluster;
  Json json;
  json["model"] = {
      {"name", request.model.name},
      {"parameters", request.model.num_params()},
      {"blocks", request.model.blocks.size()}};
  json["cluster"] = {
      {"device", cluster.device.name},
      {"device_memory", static_cast<std::int64_t>(cluster.device.memory_bytes)},
      {"nodes", cluster.nodes},
      {"devices_per_node", cluster.devices_per_node},
      {"ranks", cluster.world_size()}};
  json["plan"] = json_of_way(request, report.chosen);
  json["alternatives"] = Json::array();
  for (const Alternative& way : report.alternatives) {
    json["alternatives"].push_back(json_of_way(request, way));
  }
  return json.dump(2) + "\n";
}

} // namespace fsdp::cli
