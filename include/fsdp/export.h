#pragma once
// FSDP_API marks what the shared library shows to programs; everything else in
// it is hidden. On types that are thrown or found by dynamic_cast it also makes
// the library and the program agree on one type.

#if defined(__GNUC__) || defined(__clang__)
#define FSDP_API __attribute__((visibility("default")))
#else
#define FSDP_API
#endif
