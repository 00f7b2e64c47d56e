#pragma once
// A run as lines of text: for people.

#include <chrono>
#include <optional>
#include <ostream>
#include <string>

#include "train/metrics.h"

namespace fsdp {

/// "step 812  loss 1.5432  norm 0.43  12345 tok/s  peak 61.2 MB  1:23 left".
std::string describe(const StepMetrics& metrics);

/// The lines at the end of a run.
std::string describe(const TrainSummary& summary);

/// Printable ASCII, tabs and newlines as they are, other bytes as \xNN.
std::string printable(const std::string& text);

class Console final : public TrainObserver {
 public:
  enum class Style : std::uint8_t {
    kLines,    ///< a step's line every few seconds
    kLiveLine, ///< each step's line over the one before, by carriage return
  };

  /// `out` lives as long as this.
  Console(std::ostream& out, Style style) : out_(out), style_(style) {}

  void on_start(const RunHeader& header) override;
  void on_step(const StepMetrics& metrics) override;
  void on_validation(std::int64_t step, double loss) override;
  void on_sample(const std::string& prompt, const std::string& text) override;
  void on_end(const TrainSummary& summary) override;

 private:
  void keep_live_line();

  std::ostream& out_;
  Style style_;
  bool has_live_line_ = false;
  std::optional<std::chrono::steady_clock::time_point> last_line_;
};

} // namespace fsdp
