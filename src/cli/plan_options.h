#pragma once
// The flags that say what is planned: shared by `fsdp plan` and
// `fsdp simulate`.

#include <optional>
#include <string>

#include "plan/job.h"
#include "plan/model.h"

namespace CLI {
class App;
}

namespace fsdp::cli {

struct PlanRequest {
  plan::ModelShape model;
  plan::Cluster cluster;
  plan::Job job;
};

/// The flags of one command, which outlives this. Cheap to copy.
class PlanOptions {
 public:
  /// Adds the flags to `command`.
  explicit PlanOptions(CLI::App& command);

  /// What the command line asks for, checked with plan::check. Throws
  /// ConfigError for a value that makes no sense or has no effect, DataError
  /// for a file that cannot be read.
  PlanRequest read() const;

  /// Whether one of these flags is given.
  bool any_given() const;

 private:
  std::optional<std::string> text(const char* flag) const;
  bool is_on(const char* flag) const;
  std::int64_t count_or(const char* flag, std::int64_t otherwise) const;
  std::optional<double> positive(const char* flag) const;

  plan::ModelShape read_model() const;
  plan::Device read_device(const plan::Precision& precision) const;
  plan::Job read_job() const;
  void read_lengths(const plan::ModelShape& model, plan::Job& job) const;
  void refuse_without_effect(
      const plan::ModelShape& model, const plan::Job& job) const;

  CLI::App* command_;
};

} // namespace fsdp::cli
