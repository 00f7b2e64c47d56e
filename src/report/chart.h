#pragma once
// One picture of a page and the table beside it, before they are written down.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::report {

enum class Kind : std::uint8_t {
  kBars, ///< beside each other
  kStackedBars,
  kLine,
  kPoints,
  kTimeline, ///< bars that float over a row each
};

struct Axis {
  std::string title; ///< with the unit
  /// Its places by name; empty for an axis of numbers.
  std::vector<std::string> labels;
  bool logarithmic = false;
};

struct Point {
  double x = 0; ///< on an axis with labels: the label's index
  double y = 0; ///< NaN: a gap in the line
};

struct Span {
  int row = 0; ///< index of the y axis' label
  double start = 0;
  double end = 0;
  std::string label;
};

struct Series {
  std::string name;
  int color = 0;                   ///< of page.css, 0 to 8
  std::vector<double> values = {}; ///< of bars, by label; NaN: none
  std::vector<Point> points = {};  ///< of kLine and kPoints
  std::vector<Span> spans = {};    ///< of kTimeline
};

/// A dashed line at a value that matters, such as what a device has.
struct Limit {
  std::string name;
  double value = 0;
  bool on_x = false; ///< a value of the x axis
};

/// Every cell as it is printed; the first column names the row.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct Chart {
  std::string id; ///< a word, unique on the page
  std::string title;
  std::string text; ///< what it shows and what it leaves out
  Kind kind = Kind::kBars;
  /// Bars lie on the axis that has labels: upright where it is x.
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::optional<Limit> limit;
  Table table;
};

} // namespace fsdp::report
