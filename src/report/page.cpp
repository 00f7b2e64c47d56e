#include "report/page.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "fsdp/error.h"
#include "report/embedded.h"

namespace fsdp::report {

namespace {

using Json = nlohmann::ordered_json;

std::string escaped(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string element(std::string_view name, std::string_view text) {
  return "<" + std::string(name) + ">" + escaped(text) + "</" +
         std::string(name) + ">";
}

/// A table in which a narrow screen shows every row as a block of its own, each
/// cell behind its column's name.
std::string html_of(const Table& table) {
  std::string html = "<div class=\"table\"><table><thead><tr>";
  for (const std::string& column : table.columns) {
    html += "<th scope=\"col\">" + escaped(column) + "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      html += i == 0 ? "<th scope=\"row\">" + escaped(row[i]) + "</th>"
                     : "<td data-column=\"" + escaped(table.columns.at(i)) +
                           "\">" + escaped(row[i]) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>";
}

/// How the table is laid out.
std::string classes_of(const Table& table) {
  constexpr std::size_t kColumnsBeside = 4; // a chart
  constexpr std::size_t kColumnsOfAPhone = 3;
  constexpr std::size_t kRows = 15;
  return std::string(table.columns.size() > kColumnsBeside ? "wide " : "") +
         (table.columns.size() > kColumnsOfAPhone ? "cards " : "") +
         (table.rows.size() > kRows ? "long" : "");
}

std::string section_of(const Chart& chart) {
  const std::string id = escaped(chart.id);
  return "<section id=\"" + id + "\" class=\"" + classes_of(chart.table) +
         "\">" + element("h2", chart.title) + element("p", chart.text) +
         "\n<div class=\"pair\"><div class=\"picture\"><div class=\"frame\""
         " style=\"--lines:" +
         std::to_string(chart.y.labels.size()) +
         "\"><canvas role=\"img\" aria-label=\"" + escaped(chart.title) +
         "\"></canvas></div></div>\n" + html_of(chart.table) +
         "</div></section>\n";
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kBars:
      return "bars";
    case Kind::kStackedBars:
      return "stacked";
    case Kind::kLine:
      return "line";
    case Kind::kPoints:
      return "points";
    case Kind::kTimeline:
      return "timeline";
  }
  return "unknown";
}

Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json json_of(const Axis& axis) {
  return {
      {"title", axis.title},
      {"labels", axis.labels},
      {"logarithmic", axis.logarithmic}};
}

Json json_of(const Series& series) {
  Json values = Json::array();
  for (const double value : series.values) {
    values.push_back(number_or_null(value));
  }
  Json points = Json::array();
  for (const Point& point : series.points) {
    points.push_back(
        Json::array({number_or_null(point.x), number_or_null(point.y)}));
  }
  Json spans = Json::array();
  for (const Span& span : series.spans) {
    spans.push_back(Json::array({span.row, span.start, span.end, span.label}));
  }
  return {
      {"name", series.name},
      {"color", series.color},
      {"values", values},
      {"points", points},
      {"spans", spans}};
}

Json json_of(const Chart& chart) {
  Json json = {
      {"id", chart.id},
      {"kind", name_of(chart.kind)},
      {"x", json_of(chart.x)},
      {"y", json_of(chart.y)},
      {"series", Json::array()},
      {"limit", nullptr}};
  for (const Series& series : chart.series) {
    json["series"].push_back(json_of(series));
  }
  if (chart.limit) {
    json["limit"] = {
        {"name", chart.limit->name},
        {"value", chart.limit->value},
        {"onX", chart.limit->on_x}};
  }
  return json;
}

/// For a script element, which the first "</script" or "<!--" would end or
/// change wherever it stands. In JSON these characters are in strings only.
std::string script_of(const Json& json) {
  std::string safe;
  for (const char c :
       json.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string facts_of(const Page& page) {
  std::string html = "<dl>";
  for (const auto& [name, text] : page.facts) {
    html += "<div>" + element("dt", name) + element("dd", text) + "</div>\n";
  }
  return html + "</dl>";
}

std::string part(const Page& page, std::string_view name) {
  if (name == "title") {
    return escaped(page.title);
  }
  if (name == "facts") {
    return facts_of(page);
  }
  std::string text;
  if (name == "sections") {
    for (const Chart& chart : page.charts) {
      text += section_of(chart);
    }
  } else if (name == "notes") {
    for (const std::string& note : page.notes) {
      text += element("p", note) + "\n";
    }
  } else if (name == "data") {
    Json charts = Json::array();
    for (const Chart& chart : page.charts) {
      charts.push_back(json_of(chart));
    }
    text = script_of(charts);
  } else if (name == "css") {
    text = embedded::page_css;
  } else if (name == "js") {
    text = embedded::page_js;
  } else if (name == "chart_js") {
    text = embedded::chart_js;
  } else {
    throw UsageError(
        "page.html names the part '" + std::string(name) +
        "', which no page has");
  }
  return text;
}

} // namespace

std::string html_of(const Page& page) {
  std::string_view rest = embedded::page_html;
  std::string html;
  // From the front on, so that a text of the user's is never looked into.
  for (;;) {
    const std::size_t open = rest.find("{{");
    if (open == std::string_view::npos) {
      return html.append(rest);
    }
    const std::size_t close = rest.find("}}", open);
    html.append(rest.substr(0, open));
    html += part(page, rest.substr(open + 2, close - open - 2));
    rest.remove_prefix(close + 2);
  }
}

} // namespace fsdp::report
