#pragma once
// `fsdp plan --seed-tables`.

#include <string>

namespace fsdp::cli {

/// The tables of the project's source documents, to the digits printed there.
std::string seed_tables_text();

/// The same figures for scripts.
std::string seed_tables_json();

} // namespace fsdp::cli
