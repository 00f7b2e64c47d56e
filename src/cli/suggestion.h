#pragma once
// Help for a misspelt name.

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::cli {

/// "did you mean --nnodes?" for the name with the fewest edits, or "expected
/// run or train" if none is near.
std::string suggest(
    std::string_view wrong, const std::vector<std::string>& names);

/// "a, b or c"
std::string list(const std::vector<std::string>& names);

} // namespace fsdp::cli
