#pragma once
// LibTorch's element types as the layers below know them.

#include <c10/core/ScalarType.h>

#include <string>

#include "core/dtype.h"
#include "fsdp/error.h"

namespace fsdp {

/// Throws UsageError for quantised and other types that cannot be moved.
inline DType to_dtype(c10::ScalarType type) {
  switch (type) {
    case c10::kByte:
      return DType::kUInt8;
    case c10::kChar:
      return DType::kInt8;
    case c10::kShort:
      return DType::kInt16;
    case c10::kInt:
      return DType::kInt32;
    case c10::kLong:
      return DType::kInt64;
    case c10::kBool:
      return DType::kBool;
    case c10::kFloat8_e4m3fn:
    case c10::kFloat8_e5m2:
    case c10::kFloat8_e4m3fnuz:
    case c10::kFloat8_e5m2fnuz:
      return DType::kFloat8;
    case c10::kHalf:
      return DType::kFloat16;
    case c10::kBFloat16:
      return DType::kBFloat16;
    case c10::kFloat:
      return DType::kFloat32;
    case c10::kDouble:
      return DType::kFloat64;
    case c10::kComplexFloat:
      return DType::kComplex64;
    case c10::kComplexDouble:
      return DType::kComplex128;
    default:
      throw UsageError(
          std::string("tensors of dtype ") + c10::toString(type) +
          " cannot be moved between ranks");
  }
}

} // namespace fsdp
