#pragma once
// The pages of --html: which charts, and what is said of them.

#include <optional>
#include <span>
#include <string>

#include "cli/plan_report.h"
#include "plan/diagnose.h"
#include "plan/simulate.h"
#include "report/page.h"

namespace fsdp::cli {

/// Of the source documents' models.
report::Page seed_page();

/// Also simulates the step where the device's figures are known.
report::Page page_of_plan(const PlanReport& report);

/// `fsdp simulate`.
report::Page page_of_step(
    const PlanRequest& request,
    const plan::SimulatedStep& step,
    const plan::Throughput& throughput);

/// `fsdp trace`.
report::Page page_of_trace(
    const std::string& path,
    std::span<const plan::Event> events,
    const plan::Diagnosis& diagnosis);

/// Adds the loss of a log, or how to have one there. Throws DataError for what
/// is no log.
void add_loss(report::Page& page, const std::optional<std::string>& log);

/// Throws DataError if the file cannot be written.
void write_page(const std::string& path, const report::Page& page);

} // namespace fsdp::cli
