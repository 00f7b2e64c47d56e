#include "support/comm_conformance.h"

namespace fsdp::testing {
namespace {

FSDP_INSTANTIATE_COMM_CONFORMANCE(Inproc, backend_on_threads("inproc"));

} // namespace
} // namespace fsdp::testing
