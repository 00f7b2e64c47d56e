#pragma once
// Plain tables for a terminal and for scripts.

#include <string>
#include <vector>

namespace fsdp::cli {

/// Rows of cells under a head, columns two spaces apart: the first ones are
/// aligned to the left, numbers to the right.
class Table {
 public:
  /// The first `num_left` columns hold text.
  explicit Table(std::vector<std::string> head, std::size_t num_left = 1);

  /// As many cells as the head has; UsageError otherwise.
  void add(std::vector<std::string> row);

  /// Every line begins with two spaces and ends without any.
  std::string text() const;

 private:
  std::size_t num_left_;
  std::vector<std::vector<std::string>> rows_; ///< the head first
};

} // namespace fsdp::cli
