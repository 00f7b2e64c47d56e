#pragma once
// `fsdp plan --search`: the fastest plan that fits, and why the others lose.

#include <cstdint>
#include <string>

#include "cli/plan_options.h"

namespace CLI {
class App;
class Option;
} // namespace CLI

namespace fsdp::cli {

/// The flags of a search, beside those of a plan.
class SearchOptions {
 public:
  explicit SearchOptions(CLI::App& command);

  /// Whether --search is given. Throws ConfigError if it is not, but
  /// --global-batch is.
  bool is_on() const;

  /// What is printed. Throws ConfigError for flags whose values are searched.
  std::string run(const PlanRequest& request, bool as_json) const;

 private:
  std::int64_t global_batch() const;

  CLI::App* command_;
  CLI::Option* search_;
  CLI::Option* global_batch_;
};

} // namespace fsdp::cli
