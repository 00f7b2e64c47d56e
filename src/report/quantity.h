#pragma once
// Numbers of charts and tables: one unit for a whole column, four digits.

#include <span>
#include <string>

namespace fsdp::report {

struct Unit {
  double scale = 1;
  const char* name = "";
};

// The largest first, by thousands.
std::span<const Unit> byte_units();   ///< PB to B
std::span<const Unit> second_units(); ///< s, ms, us

/// The largest unit that `largest` bytes reach.
Unit unit_of_bytes(double largest);

/// The same for seconds.
Unit unit_of_seconds(double largest);

/// Four digits, whole numbers in full: "157.9", "0.07895", "16384".
std::string number_text(double value);

/// "12.3 GB".
std::string with_unit(double value, const Unit& unit);

/// "41.5 %" of a share.
std::string percent_text(double share);

/// "8.03 B", "124 M": parameters.
std::string count_text(double count);

/// Whether a logarithmic axis shows them better: all positive, and the largest
/// many times the smallest.
bool spread_widely(std::span<const double> values);

} // namespace fsdp::report
