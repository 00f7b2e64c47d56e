#pragma once
// Which dtype a unit computes and reduces in (FSDP2 MixedPrecisionPolicy).

#include <c10/core/ScalarType.h>

#include <optional>

namespace fsdp {

/// Parameters, gradients after reduction and optimizer state stay in the
/// parameter's own dtype. Each dtype is float32, float64, bfloat16 or float16;
/// fully_shard throws UsageError for another.
struct MixedPrecisionPolicy {
  /// Gathered parameters, and so the forward and the gradients; unset: the
  /// parameter's own. Parameters that are not floating are left alone.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// Reduction over ranks; unset: the gradients' dtype.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  /// Floating outputs of the unit's forward are cast to it; unset: left alone.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  /// Floating inputs of the unit's forward are cast to param_dtype.
  bool cast_forward_inputs = true;
};

} // namespace fsdp
