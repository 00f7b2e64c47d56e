#pragma once
// The one small exchange of each step, from which every rank learns the same:
// the loss, the clock, and whose numbers are not finite.

#include <cstdint>
#include <vector>

namespace fsdp {

class ProcessGroup;

/// What one rank brings.
struct RankReport {
  double loss_sum = 0; ///< of -ln p over the rank's tokens
  double num_tokens = 0;
  double peak_tensor_bytes = 0;
};

struct StepReport {
  std::vector<RankReport> ranks;
  double seconds = 0; ///< rank 0's clock

  /// Mean over all tokens.
  double loss() const;
  std::int64_t num_tokens() const;
  std::int64_t peak_tensor_bytes() const; ///< the most of any rank
  /// Ranks whose loss is not finite, ascending.
  std::vector<int> nonfinite_ranks() const;
};

/// [collective over `group`] `seconds` counts on rank 0 only.
StepReport exchange(
    const ProcessGroup& group, const RankReport& mine, double seconds);

} // namespace fsdp
