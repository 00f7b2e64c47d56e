#include "support/comm_conformance.h"

namespace fsdp::testing {
namespace {

FSDP_INSTANTIATE_COMM_CONFORMANCE(Shm, backend_on_threads("shm"));

} // namespace
} // namespace fsdp::testing
