#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "fsdp/error.h"

namespace fsdp::cli {

Table::Table(std::vector<std::string> head, std::size_t num_left)
    : num_left_(num_left) {
  rows_.push_back(std::move(head));
}

void Table::add(std::vector<std::string> row) {
  if (row.size() != rows_.front().size()) {
    throw UsageError(
        "a table of " + std::to_string(rows_.front().size()) +
        " columns got a row of " + std::to_string(row.size()));
  }
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      line += "  " + (i < num_left_ ? row[i] + fill : fill + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

} // namespace fsdp::cli
