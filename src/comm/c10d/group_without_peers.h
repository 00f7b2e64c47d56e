#pragma once
// A world that this process sees one rank of, and nobody else is in.

#include <string>

#include "fsdp/process_group.h"

namespace fsdp {

/// The group of `size` ranks as its rank `rank` has it, over a registered
/// backend that waits for nobody. Local.
ProcessGroup group_without_peers(
    int rank, int size, const std::string& backend);

} // namespace fsdp
