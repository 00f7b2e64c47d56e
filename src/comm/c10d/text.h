#pragma once
// Pieces of this folder's error texts; the others are in comm/error_text.h.

#include <chrono>
#include <string>

namespace fsdp {

/// "5 s" or "1500 ms".
inline std::string time_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s"
                        : std::to_string(ms) + " ms";
}

} // namespace fsdp
