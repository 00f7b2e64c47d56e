#pragma once
// Slurm's shorthand for hosts and for tasks per host.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::detail {

/// First host of a list such as "node[01-03,07],login": "node01". Empty if the
/// text is no such list.
std::optional<std::string> first_slurm_host(std::string_view list);

/// Tasks on each host from a list such as "2(x3),1": {2, 2, 2, 1}. Empty if the
/// text is no such list.
std::optional<std::vector<int>> slurm_tasks_per_node(std::string_view list);

} // namespace fsdp::detail
