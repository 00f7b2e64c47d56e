#include "optim/option_checks.h"

#include <cmath>
#include <sstream>

#include "fsdp/error.h"

namespace fsdp::optim {

void require(
    bool holds,
    std::string_view optimizer,
    std::string_view option,
    double value,
    std::string_view expected) {
  if (!holds) {
    std::ostringstream text;
    text << optimizer << ": " << option << " is " << value << ", expected "
         << expected;
    throw UsageError(text.str());
  }
}

void require_not_negative(
    std::string_view optimizer, std::string_view option, double value) {
  require(
      std::isfinite(value) && value >= 0,
      optimizer,
      option,
      value,
      "a finite number of at least 0");
}

} // namespace fsdp::optim
