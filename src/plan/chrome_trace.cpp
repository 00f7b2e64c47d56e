#include "plan/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <system_error>

#include "fsdp/error.h"

namespace fsdp::plan {

namespace {

using nlohmann::json;

constexpr double kMicroseconds = 1e6;
constexpr std::array kCategories{
    Category::kCompute,
    Category::kUnshard,
    Category::kReduce,
    Category::kOptimizer};

int thread_of(Category category) {
  return is_communication(category) ? 1 : 0;
}

json name_event(const char* what, int rank, int thread, const char* name) {
  return {
      {"name", what},
      {"ph", "M"},
      {"pid", rank},
      {"tid", thread},
      {"args", {{"name", name}}}};
}

/// A whole number of nanoseconds, so that reading gives back what was written.
double microseconds(double seconds) {
  return std::round(seconds * kMicroseconds * 1e3) / 1e3;
}

json to_json(const Event& event) {
  const double start = microseconds(event.start);
  return {
      {"name", event.name + " " + event.unit},
      {"cat", name_of(event.category)},
      {"ph", "X"},
      {"ts", start},
      {"dur", microseconds(event.end) - start},
      {"pid", event.rank},
      {"tid", thread_of(event.category)},
      {"args", {{"operation", event.name}, {"unit", event.unit}}}};
}

class TraceReader {
 public:
  explicit TraceReader(const std::filesystem::path& path) : path_(path) {}

  std::vector<Event> read() {
    const json root = parse();
    const json& list = events_of(root);
    std::vector<Event> events;
    for (std::size_t i = 0; i < list.size(); ++i) {
      place_ = i;
      if (auto event = read_event(list[i])) {
        events.push_back(std::move(*event));
      }
    }
    if (events.empty()) {
      fail(
          "holds no event of the categories compute, unshard, reduce or "
          "optimizer; record it with fsdp train --profile or fsdp simulate "
          "--trace");
    }
    std::ranges::stable_sort(events, {}, &Event::start);
    return events;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("trace '" + path_.string() + "': " + what);
  }

  [[noreturn]] void fail_event(const std::string& what) const {
    fail("event " + std::to_string(place_) + " " + what);
  }

  json parse() const {
    std::error_code ignored;
    if (std::filesystem::is_directory(path_, ignored)) {
      fail("is a folder, expected a file");
    }
    if (std::filesystem::is_fifo(path_, ignored)) {
      fail("is a pipe, expected a file");
    }
    std::ifstream file(path_, std::ios::binary);
    if (!file) {
      fail("cannot be read");
    }
    try {
      return json::parse(file);
    } catch (const json::exception& error) {
      std::string text = error.what();
      std::ranges::replace(text, '\n', ' ');
      fail("is no JSON: " + text);
    }
  }

  const json& events_of(const json& root) const {
    const json* list = &root;
    if (root.is_object() && root.contains("traceEvents")) {
      list = &root["traceEvents"];
    }
    if (!list->is_array()) {
      fail(
          "is no trace: expected a list of events, or an object with "
          "traceEvents");
    }
    return *list;
  }

  std::optional<Event> read_event(const json& value) const {
    if (!value.is_object()) {
      fail_event("is no object");
    }
    const auto cat = value.find("cat");
    if (cat == value.end() || !cat->is_string()) {
      return std::nullopt;
    }
    const auto category = std::ranges::find_if(
        kCategories,
        [&](Category known) { return *cat == std::string(name_of(known)); });
    if (category == kCategories.end()) {
      return std::nullopt;
    }
    if (text_at(value, "ph") != "X") {
      fail_event(
          "is of phase \"" + text_at(value, "ph") +
          "\"; expected complete events (\"X\")");
    }
    Event event;
    event.category = *category;
    event.start = number_at(value, "ts") / kMicroseconds;
    const double duration = number_at(value, "dur");
    if (duration < 0) {
      fail_event("has a negative dur");
    }
    event.end = event.start + duration / kMicroseconds;
    event.rank = rank_at(value);
    const auto args = value.find("args");
    if (args == value.end() || !args->is_object()) {
      fail_event("has no args with its unit");
    }
    event.unit = text_at(*args, "unit");
    event.name = args->contains("operation") ? text_at(*args, "operation")
                                             : text_at(value, "name");
    return event;
  }

  std::string text_at(const json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) {
      fail_event(std::string("has no text '") + key + "'");
    }
    return found->get<std::string>();
  }

  double number_at(const json& object, const char* key) const {
    constexpr double kLongest = 1e15; // 30 years, and exact to a microsecond
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number() ||
        !(std::abs(found->get<double>()) <= kLongest)) {
      fail_event(std::string("has no number '") + key + "' of at most 1e15");
    }
    return found->get<double>();
  }

  int rank_at(const json& object) const {
    const auto found = object.find("pid");
    if (found == object.end()) {
      return 0;
    }
    if (!found->is_number_integer() ||
        found->get<double>() > std::numeric_limits<int>::max() ||
        found->get<double>() < 0) {
      fail_event("has a pid that is no rank");
    }
    return found->get<int>();
  }

  const std::filesystem::path& path_;
  std::size_t place_ = 0;
};

} // namespace

void write_trace(std::ostream& out, std::span<const Event> events) {
  std::set<int> ranks;
  for (const Event& event : events) {
    ranks.insert(event.rank);
  }
  out << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto write = [&](const json& value) {
    out << separator << value.dump();
    separator = ",\n";
  };
  for (const int rank : ranks) {
    const std::string name = "rank " + std::to_string(rank);
    write(name_event("process_name", rank, 0, name.c_str()));
    write(name_event("thread_name", rank, 0, "compute"));
    write(name_event("thread_name", rank, 1, "communication"));
  }
  for (const Event& event : events) {
    write(to_json(event));
  }
  out << "\n]}\n";
}

std::vector<Event> read_trace(const std::filesystem::path& path) {
  return TraceReader(path).read();
}

} // namespace fsdp::plan
