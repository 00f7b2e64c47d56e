#include "comm/c10d/gloo_backend.h"
#include "support/comm_conformance.h"

namespace fsdp::testing {
namespace {

RunWorld gloo_on_threads() {
  register_gloo_backend();
  return backend_on_threads("gloo");
}

FSDP_INSTANTIATE_COMM_CONFORMANCE(Gloo, gloo_on_threads());

} // namespace
} // namespace fsdp::testing
