#pragma once
// The backend "gloo": ranks on several hosts, over TCP.

namespace fsdp {

/// Idempotent and thread-safe.
void register_gloo_backend();

} // namespace fsdp
