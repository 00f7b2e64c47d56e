#pragma once
// Says which gathered parameter was written to before the process dies of it.

#include <cstddef>
#include <string_view>

namespace fsdp {

/// Names [begin, begin + length) for the SIGSEGV handler, which is installed by
/// the first call. Returns a ticket for forget_fault_range, or -1 if all 4096
/// places are taken (the process then dies without a name). The name is cut at
/// 191 bytes. Thread-safe.
int name_fault_range(
    const void* begin, std::size_t length, std::string_view name);

/// Frees the place; the range must not be mapped read-only any longer than the
/// caller knows of. Thread-safe.
void forget_fault_range(int ticket);

/// Called in the signal handler with what is written to stderr, without
/// "[fsdp] ": only async-signal-safe things may be done.
using FaultListener = void (*)(void* context, std::string_view text) noexcept;

/// At most 64 at a time, further ones are not called. Returns a ticket for
/// remove_fault_listener. Thread-safe.
int add_fault_listener(FaultListener listener, void* context);
void remove_fault_listener(int ticket);

} // namespace fsdp
