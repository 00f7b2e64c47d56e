#pragma once
// Which of some names a misspelt one may have meant.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

/// Edits from `a` to `b`: insert, delete, replace, swap of neighbours; letter
/// case and '-' against '_' cost nothing.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the fewest edits, the first of equals; empty if there is
/// no candidate.
std::string nearest_name(
    std::string_view name, std::span<const std::string> candidates);

} // namespace fsdp
