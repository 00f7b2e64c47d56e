#include "cli/html_report.h"

#include <fstream>
#include <utility>
#include <vector>

#include "cli/units.h"
#include "fsdp/error.h"
#include "plan/simulate.h"
#include "report/plan_charts.h"
#include "report/quantity.h"
#include "report/seed_charts.h"
#include "report/step_charts.h"
#include "report/training_loss.h"

namespace fsdp::cli {

namespace {

report::Way way_of(const Alternative& alternative) {
  report::Way way;
  way.job = alternative.job;
  way.memory = alternative.memory;
  way.traffic = alternative.traffic;
  return way;
}

/// Fills in the step; what a file of weights or an own device does not tell is
/// returned in words instead.
std::string simulate_way(
    const PlanRequest& request, report::Way& way, bool with_events) {
  try {
    plan::StepEstimate estimate = plan::estimate_step(
        request.model, way.job, request.cluster, {}, with_events);
    way.step = std::move(estimate.step);
    way.throughput = estimate.throughput;
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string title_of(const PlanRequest& request) {
  return request.model.name + " on " +
         std::to_string(request.cluster.world_size()) + " x " +
         request.cluster.device.name;
}

std::string rate_text(
    const plan::SimulatedStep& step, const plan::Throughput& throughput) {
  return seconds_text(step.seconds) + " a step, " +
         count_text(throughput.tokens_per_second) + " tokens/s, MFU " +
         report::percent_text(throughput.mfu) + ", HFU " +
         report::percent_text(throughput.hfu);
}

void add_step(report::Page& page, const plan::SimulatedStep& step) {
  page.charts.push_back(report::times_of_step(
      {{"compute", step.compute - step.optimizer},
       {"added by collectives", step.contention},
       {"optimizer", step.optimizer},
       {"communication", step.communication},
       {"exposed", step.exposed}},
      step.seconds));
  page.charts.push_back(report::timeline(step.events, 0));
  page.charts.push_back(report::exposed_by_unit(step.units));
  if (step.passes_left_out > 0) {
    page.notes.push_back(
        "The timeline leaves out the first " +
        std::to_string(step.passes_left_out) + " passes of the step.");
  }
}

void add_plan_charts(
    report::Page& page,
    const PlanRequest& request,
    const report::Way& chosen,
    const std::vector<report::Way>& ways) {
  const plan::Cluster& cluster = request.cluster;
  page.charts.push_back(report::memory_by_component(chosen, cluster));
  page.charts.push_back(report::all_strategies(ways, cluster));
  page.charts.push_back(
      report::memory_savings(request.model, request.job, cluster));
  page.charts.push_back(report::communication_volume(ways, cluster));
  page.charts.push_back(report::communication_against_memory(ways, cluster));
  if (cluster.device.memory_bytes > 0) {
    page.charts.push_back(
        report::recommendation(request.model, request.job, cluster));
  }
}

} // namespace

report::Page seed_page() {
  report::Page page;
  page.title = "FSDP in figures";
  page.facts = {
      {"model",
       "the source documents' transformer of 9,868,560 parameters, in fp32 "
       "with Adam"}};
  page.charts = report::seed_charts();
  return page;
}

report::Page page_of_plan(const PlanReport& report) {
  const PlanRequest& request = report.request;
  report::Page page;
  page.title = title_of(request);
  page.facts = facts_of(request);
  page.facts.emplace_back("memory", verdict_of(request, report.chosen.memory));
  report::Way chosen = way_of(report.chosen);
  const std::string unknown = simulate_way(request, chosen, true);
  std::vector<report::Way> ways;
  for (const Alternative& alternative : report.alternatives) {
    ways.push_back(way_of(alternative));
    simulate_way(request, ways.back(), false);
  }
  if (chosen.step) {
    page.facts.emplace_back(
        "speed", rate_text(*chosen.step, *chosen.throughput));
  } else {
    page.notes.push_back("No simulated step: " + unknown + ".");
  }
  add_plan_charts(page, request, chosen, ways);
  if (chosen.step) {
    add_step(page, *chosen.step);
  }
  return page;
}

report::Page page_of_step(
    const PlanRequest& request,
    const plan::SimulatedStep& step,
    const plan::Throughput& throughput) {
  report::Page page;
  page.title = "One step of " + title_of(request);
  page.facts = facts_of(request);
  page.facts.emplace_back("speed", rate_text(step, throughput));
  add_step(page, step);
  return page;
}

report::Page page_of_trace(
    const std::string& path,
    std::span<const plan::Event> events,
    const plan::Diagnosis& diagnosis) {
  report::Page page;
  page.title = "Timeline " + path;
  page.facts = {
      {"rank",
       std::to_string(diagnosis.rank) + " of " +
           std::to_string(diagnosis.num_ranks) +
           ", the one that waits most for communication"}};
  for (const std::string& advice : diagnosis.advice) {
    page.facts.emplace_back("to do", advice);
  }
  const plan::BusyTimes& busy = diagnosis.times;
  page.charts = {
      report::times_of_step(
          {{"compute", busy.compute - busy.optimizer},
           {"optimizer", busy.optimizer},
           {"communication", busy.communication},
           {"exposed gathers", diagnosis.exposed_unshard},
           {"exposed reductions", diagnosis.exposed_reduce},
           {"nothing", busy.idle}},
          busy.seconds()),
      report::timeline(events, diagnosis.rank),
      report::exposed_by_unit(plan::exposure_by_unit(events, diagnosis.rank))};
  page.charts.front().title = "Where the time goes";
  return page;
}

void add_loss(report::Page& page, const std::optional<std::string>& log) {
  if (log) {
    page.charts.push_back(report::training_loss(*log));
  } else {
    page.notes.emplace_back(
        "With --loss FILE the page shows the training loss, too, of a log that "
        "fsdp train --log-json FILE has written.");
  }
}

void write_page(const std::string& path, const report::Page& page) {
  std::ofstream file(path);
  file << report::html_of(page);
  file.close();
  if (!file) {
    throw DataError("--html '" + path + "': cannot be written");
  }
}

} // namespace fsdp::cli
