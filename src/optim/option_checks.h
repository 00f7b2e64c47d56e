#pragma once
// Range checks of optimizer options.

#include <string_view>

namespace fsdp::optim {

/// Throws UsageError "<optimizer>: <option> is <value>, expected <expected>"
/// unless `holds`.
void require(
    bool holds,
    std::string_view optimizer,
    std::string_view option,
    double value,
    std::string_view expected);

/// The check of most options: finite and at least 0.
void require_not_negative(
    std::string_view optimizer, std::string_view option, double value);

} // namespace fsdp::optim
