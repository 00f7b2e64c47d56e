#pragma once
// Benchmarks that all ranks of a job run alike: the number of iterations is
// fixed, because each is a collective call.

#include "fsdp/process_group.h"

namespace fsdp::bench {

void register_collectives(const ProcessGroup& world);
void register_hundred_units(const ProcessGroup& world);

} // namespace fsdp::bench
