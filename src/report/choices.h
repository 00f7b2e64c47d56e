#pragma once
// A chart of points on a grid: what was chosen at each place.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "report/chart.h"

namespace fsdp::report {

/// Labels the axes and the table, and puts a point at each place into the
/// series that `choose(x, y)` names.
template <typename Choose>
void add_choices(
    Chart& chart,
    const std::vector<std::string>& columns,
    const std::vector<std::string>& rows,
    Choose choose) {
  chart.x.labels = columns;
  chart.y.labels = rows;
  for (const std::string& column : columns) {
    chart.table.columns.push_back("on " + column);
  }
  for (std::size_t y = 0; y < rows.size(); ++y) {
    std::vector<std::string> cells{rows[y]};
    for (std::size_t x = 0; x < columns.size(); ++x) {
      cells.emplace_back(choose(x, y));
      std::ranges::find(chart.series, cells.back(), &Series::name)
          ->points.push_back({static_cast<double>(x), static_cast<double>(y)});
    }
    chart.table.rows.push_back(std::move(cells));
  }
}

} // namespace fsdp::report
