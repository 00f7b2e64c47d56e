#pragma once
// The tensors among a LibTorch function's boxed arguments and results.

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_strided.h>

#include <optional>

namespace fsdp {

/// `value` with f(tensor) in place of its defined tensors.
template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor() && value.toTensor().defined()) {
    return f(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& item : value.toTensorVector()) {
      list.push_back(item.defined() ? f(item) : item);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toOptionalTensorVector()) {
      list.push_back(item && item->defined() ? f(*item) : item);
    }
    return list;
  }
  return value;
}

/// A new tensor of the same sizes, strides and options on `device`.
inline at::Tensor shaped_like(
    const at::Tensor& tensor, c10::DeviceType device) {
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(device));
}

} // namespace fsdp
