#pragma once
// What `fsdp plan` has worked out, before it is written down.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/plan_options.h"
#include "plan/memory.h"
#include "plan/traffic.h"

namespace fsdp::cli {

/// One way to shard the same model on the same devices.
struct Alternative {
  plan::Job job;
  plan::MemoryEstimate memory;
  plan::TrafficEstimate traffic;
};

struct PlanReport {
  PlanRequest request;
  Alternative chosen;
  /// Every strategy that this cluster has, hybrid ones with several shapes.
  std::vector<Alternative> alternatives;
};

/// Throws ConfigError for what cannot be planned.
PlanReport make_report(PlanRequest request);

/// Bytes that are left on the device (less than 0: missing); nothing where its
/// memory is not known.
std::optional<std::int64_t> spare_bytes(
    const PlanRequest& request, const plan::MemoryEstimate& memory);

/// The planned job in words: model, devices, job and step.
std::vector<std::pair<std::string, std::string>> facts_of(
    const PlanRequest& request);

/// "fits, 12.3 GB to spare", or what is missing.
std::string verdict_of(
    const PlanRequest& request, const plan::MemoryEstimate& memory);

/// For people: several tables.
std::string text_of(const PlanReport& report);

/// For scripts: one JSON document, everything in bytes.
std::string json_of(const PlanReport& report);

} // namespace fsdp::cli
