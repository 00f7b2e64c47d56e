#pragma once
// Numbers as people write and read them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::cli {

/// "7B", "1.5e9", "350M", "9868560" as a whole number: K, M, B (or G) and T
/// are thousands and so on. Empty for anything else, a negative number, and
/// what 64 bits do not hold.
std::optional<std::int64_t> parse_count(std::string_view text);

/// A decimal number; empty for anything else, "inf" and "nan" included.
std::optional<double> parse_real(std::string_view text);

/// "12.3 GB", "418 MB", "0 B": three digits, units of 1000.
std::string bytes_text(double bytes);

/// "7.00 B", "124 M", "512": parameters.
std::string count_text(double count);

/// "1.20 ms", "35.0 us", "2.10 s".
std::string seconds_text(double seconds);

} // namespace fsdp::cli
