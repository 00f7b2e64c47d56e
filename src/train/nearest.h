#pragma once
// What the user may have meant.

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

/// The candidate with the fewest edits (insert, delete, replace, swap of
/// neighbours; letter case and '-' against '_' cost nothing); the first of
/// equals; empty if there is no candidate.
std::string nearest_name(
    std::string_view name, std::span<const std::string> candidates);

} // namespace fsdp
