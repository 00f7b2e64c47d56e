#pragma once
// Text that the model goes on with.

#include <cstdint>
#include <string>

#include "fsdp/process_group.h"
#include "train/models/language_model.h"

namespace fsdp {

struct SampleOptions {
  std::string prompt; ///< at least one byte
  std::int64_t num_bytes = 256;
  std::int64_t max_context = 128; ///< bytes the model looks back at most
  double temperature = 0.7;
  std::uint64_t seed = 0;
};

/// [collective] Draws bytes one by one from a model of bytes; every rank runs
/// the same forwards and rank 0 draws. Returns the new bytes on every rank.
std::string sample_bytes(
    const LanguageModel& model,
    const ProcessGroup& group,
    const SampleOptions& options);

} // namespace fsdp
