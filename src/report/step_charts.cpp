#include "report/step_charts.h"

#include <algorithm>
#include <array>

#include "fsdp/error.h"
#include "report/quantity.h"

namespace fsdp::report {

namespace {

using plan::Category;
using plan::Event;

constexpr int kComputeRow = 0;
constexpr int kCommunicationRow = 1;

std::size_t index_of(Category category) {
  return static_cast<std::size_t>(category);
}

/// Of the rank, by their starts, with as many of the last as a chart can show.
std::vector<Event> last_events(std::span<const Event> events, int rank) {
  std::vector<Event> own;
  std::ranges::copy_if(
      events, std::back_inserter(own), [&](const Event& event) {
        return event.rank == rank;
      });
  std::ranges::stable_sort(own, {}, &Event::start);
  if (own.size() > kMostSpans) {
    own.erase(own.begin(), own.end() - kMostSpans);
  }
  return own;
}

Table busy_table(const plan::BusyTimes& busy) {
  const Unit unit = unit_of_seconds(busy.seconds());
  Table table;
  table.columns = {"what runs", std::string("time, ") + unit.name, "share"};
  const auto add = [&](const char* name, double seconds) {
    const double whole = busy.seconds();
    table.rows.push_back(
        {name,
         number_text(seconds / unit.scale),
         percent_text(whole > 0 ? seconds / whole : 0)});
  };
  add("compute", busy.compute - busy.optimizer);
  add("optimizer", busy.optimizer);
  add("communication", busy.communication);
  add("communication alone", busy.seconds() - busy.compute - busy.idle);
  add("nothing", busy.idle);
  add("all", busy.seconds());
  return table;
}

} // namespace

Chart timeline(std::span<const Event> events, int rank) {
  const std::vector<Event> own = last_events(events, rank);
  if (own.empty()) {
    throw UsageError(
        "timeline: rank " + std::to_string(rank) +
        " has no events; pass a rank that has");
  }
  const plan::BusyTimes busy = plan::busy_times(own, rank);
  const Unit unit = unit_of_seconds(busy.seconds());
  Chart chart;
  chart.id = "timeline";
  chart.title = "Timeline of rank " + std::to_string(rank);
  chart.text =
      "Communication is exposed where nothing computes above it. The sliders "
      "choose a part.";
  const auto num_events = std::ranges::count(events, rank, &Event::rank);
  if (static_cast<std::size_t>(num_events) > own.size()) {
    chart.text += " The last " + std::to_string(own.size()) + " of " +
                  std::to_string(num_events) + " events.";
  }
  chart.kind = Kind::kTimeline;
  chart.x.title = std::string("time, ") + unit.name;
  chart.y.labels = {"compute", "communication"};
  chart.series = {
      {.name = "compute", .color = 0},
      {.name = "unshard", .color = 1},
      {.name = "reduce", .color = 3},
      {.name = "optimizer", .color = 2}};
  for (const Event& event : own) {
    const bool sent = is_communication(event.category);
    chart.series.at(index_of(event.category))
        .spans.push_back(
            {.row = sent ? kCommunicationRow : kComputeRow,
             .start = (event.start - busy.start) / unit.scale,
             .end = (event.end - busy.start) / unit.scale,
             .label = event.name + " " + event.unit});
  }
  chart.table = busy_table(busy);
  return chart;
}

Chart exposed_by_unit(std::span<const plan::UnitExposure> units) {
  double most = 0;
  double all = 0;
  for (const plan::UnitExposure& unit : units) {
    most = std::max(most, unit.seconds());
    all += unit.seconds();
  }
  const Unit scale = unit_of_seconds(most);
  const std::string name = scale.name;
  Chart chart;
  chart.id = "exposed";
  chart.title = "Exposed communication by unit";
  chart.text = all > 0 ? "Time in which a unit's gathers or reductions run and "
                         "nothing computes: " +
                             with_unit(all, unit_of_seconds(all)) + " in all."
                       : "Compute hides all communication.";
  chart.kind = Kind::kStackedBars;
  chart.x.title = "unit";
  chart.y.title = "exposed, " + name;
  chart.series = {
      {.name = "gathers", .color = 1}, {.name = "reductions", .color = 3}};
  chart.table.columns = {"unit", "gathers, " + name, "reductions, " + name};
  for (const plan::UnitExposure& unit : units) {
    chart.x.labels.push_back(unit.unit);
    chart.series[0].values.push_back(unit.unshard / scale.scale);
    chart.series[1].values.push_back(unit.reduce / scale.scale);
    constexpr double kNothing = 1e-9; // a trace has whole nanoseconds
    if (unit.seconds() > kNothing) {
      chart.table.rows.push_back(
          {unit.unit,
           number_text(unit.unshard / scale.scale),
           number_text(unit.reduce / scale.scale)});
    }
  }
  return chart;
}

Chart times_of_step(
    const std::vector<std::pair<std::string, double>>& parts, double whole) {
  const Unit unit = unit_of_seconds(whole);
  Chart chart;
  chart.id = "times";
  chart.title = "Where a step's time goes";
  chart.text = "Of " + with_unit(whole, unit) +
               ". Communication runs beside compute but for what is exposed.";
  chart.x.title = std::string("time, ") + unit.name;
  chart.series = {{.name = "time", .color = 0}};
  chart.table.columns = {
      "what", std::string("time, ") + unit.name, "share of the step"};
  for (const auto& [name, seconds] : parts) {
    chart.y.labels.push_back(name);
    chart.series[0].values.push_back(seconds / unit.scale);
    chart.table.rows.push_back(
        {name,
         number_text(seconds / unit.scale),
         percent_text(whole > 0 ? seconds / whole : 0)});
  }
  return chart;
}

} // namespace fsdp::report
