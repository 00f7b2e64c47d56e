#include "report/training_loss.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "report/quantity.h"

namespace fsdp::report {

namespace {

std::vector<Point> read_log(const std::filesystem::path& log) {
  const std::string name = "loss '" + log.string();
  std::error_code ignored;
  std::ifstream file(log);
  // A folder can be opened, and reads as if it were empty.
  if (!file || std::filesystem::is_directory(log, ignored)) {
    throw DataError(name + "': cannot be read");
  }
  std::vector<Point> points;
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) {
      continue;
    }
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const bool has_step = json.is_object() && json.contains("step") &&
                          json["step"].is_number_integer();
    if (!has_step || !json.contains("loss") ||
        !(json["loss"].is_number() || json["loss"].is_null())) {
      throw DataError(
          name + "': line " + std::to_string(number) +
          " is no JSON object with a step and a loss, as fsdp train "
          "--log-json writes it");
    }
    points.push_back(
        {json["step"].get<double>(),
         json["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN()
                                : json["loss"].get<double>()});
  }
  if (points.empty()) {
    throw DataError(
        name + "': holds no step; expected the lines of fsdp train --log-json");
  }
  return points;
}

std::string step_text(const Point& point) {
  return std::to_string(std::llround(point.x));
}

/// Every n-th and the last, `most` or one more.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t most) {
  const std::size_t stride = (points.size() + most - 1) / most;
  std::vector<Point> some;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i % stride == 0 || i + 1 == points.size()) {
      some.push_back(points[i]);
    }
  }
  return some;
}

} // namespace

Chart training_loss(const std::filesystem::path& log) {
  constexpr std::size_t kRows = 40;
  const std::vector<Point> points = read_log(log);
  const double first = points.front().y;
  const double last = points.back().y;
  Chart chart;
  chart.id = "loss";
  chart.title = "Training loss";
  chart.text = "From " + log.filename().string() + ": " + number_text(first) +
               " at step " + step_text(points.front()) + ", " +
               number_text(last) + " at step " + step_text(points.back());
  chart.text += first > 0 && std::isfinite(last)
                    ? ", " + percent_text(1 - last / first) + " less."
                    : ".";
  chart.kind = Kind::kLine;
  chart.x.title = "step";
  chart.y.title = "loss, nats a token";
  chart.series = {{.name = "loss", .color = 0}};
  chart.series[0].points = thinned(points, kMostLossPoints);
  chart.table.columns = {"step", "loss"};
  for (const Point& point : thinned(points, kRows)) {
    chart.table.rows.push_back({step_text(point), number_text(point.y)});
  }
  return chart;
}

} // namespace fsdp::report
