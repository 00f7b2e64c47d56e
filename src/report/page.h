#pragma once
// A page of charts in one file that needs nothing else: no network, no font, no
// library beside it. Equal pages give equal bytes.

#include <string>
#include <utility>
#include <vector>

#include "report/chart.h"

namespace fsdp::report {

struct Page {
  std::string title;
  /// What the page is about, by name: model, devices, job.
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Chart> charts;
  std::vector<std::string> notes; ///< sentences at the end
};

/// Every text of `page` stands as it is: what looks like HTML or ends a script
/// is escaped, what is no UTF-8 is replaced.
std::string html_of(const Page& page);

} // namespace fsdp::report
