#pragma once
// A strategy has one colour on every chart.

#include "plan/job.h"

namespace fsdp::report {

constexpr int color_of(plan::Strategy strategy) {
  switch (strategy) {
    case plan::Strategy::kNoShard:
      return 6;
    case plan::Strategy::kShardGradOp:
      return 5;
    case plan::Strategy::kFullShard:
      return 0;
    case plan::Strategy::kHybridShard:
      return 2;
    case plan::Strategy::kHybridShardZero2:
      return 3;
  }
  return 8;
}

inline constexpr int kOffloadColor = 4;
inline constexpr int kNothingFitsColor = 8;

} // namespace fsdp::report
