#include "dryrun/shape_kernels.h"

#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

namespace fsdp {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// --- values ------------------------------------------------------------------

at::Scalar local_scalar(const Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) ? at::Scalar(1.0)
                                                  : at::Scalar(1);
}

/// To the host: ones, as item() gives.
Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  (void)source;
  if (target.is_cpu()) {
    target.fill_(1);
  }
  return target;
}

// --- indexing ----------------------------------------------------------------

Tensor index_select(const Tensor& self, std::int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, self.dim()))] =
      index.numel();
  return at::empty(sizes, self.options());
}

Tensor embedding_dense_backward(
    const Tensor& grad,
    const Tensor&,
    c10::SymInt num_weights,
    c10::SymInt,
    bool) {
  return at::empty(
      {num_weights.guard_int(__FILE__, __LINE__), grad.size(-1)},
      grad.options());
}

// --- normalisation -----------------------------------------------------------

at::TensorOptions statistics_of(const Tensor& input) {
  return input.options().dtype(at::toOpMathType(input.scalar_type()));
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm(
    const Tensor& input,
    c10::SymIntArrayRef normalized,
    const OptionalTensor&,
    const OptionalTensor&,
    double) {
  auto sizes = input.sizes().vec();
  std::fill(
      sizes.end() - static_cast<std::ptrdiff_t>(normalized.size()),
      sizes.end(),
      1);
  return {
      at::empty(input.sizes(), input.options()),
      at::empty(sizes, statistics_of(input)),
      at::empty(sizes, statistics_of(input))};
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward(
    const Tensor&,
    const Tensor& input,
    c10::SymIntArrayRef,
    const Tensor&,
    const Tensor&,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> needed) {
  const auto like = [](const OptionalTensor& tensor, bool is_needed) {
    return is_needed && tensor && tensor->defined() ? at::empty_like(*tensor)
                                                    : Tensor();
  };
  return {
      like(input, needed[0]), like(weight, needed[1]), like(bias, needed[2])};
}

// --- attention ---------------------------------------------------------------

/// [batch, heads, seq, ...] that lies in memory as [batch, seq, heads, ...].
Tensor by_position(const Tensor& like, std::int64_t last) {
  return at::empty(
             {like.size(0), like.size(2), like.size(1), last}, like.options())
      .transpose(1, 2);
}

std::tuple<Tensor, Tensor> flash_attention(
    const Tensor& query,
    const Tensor&,
    const Tensor& value,
    double,
    bool,
    const OptionalTensor&,
    std::optional<double>) {
  const Tensor logsumexp =
      at::empty(
          {query.size(0), query.size(2), query.size(1)}, statistics_of(query))
          .transpose(1, 2);
  return {by_position(query, value.size(3)), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor&,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor&,
    const Tensor&,
    double,
    bool,
    const OptionalTensor&,
    std::optional<double>) {
  return {
      by_position(query, query.size(3)),
      by_position(key, key.size(3)),
      by_position(value, value.size(3))};
}

/// What the CPU chooses for dense attention without dropout.
Tensor attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, is_causal, mask, scale));
}

// --- optimizers --------------------------------------------------------------

void fused_step(
    at::TensorList,
    at::TensorList,
    at::TensorList,
    at::TensorList,
    at::TensorList,
    at::TensorList,
    double,
    double,
    double,
    double,
    double,
    bool,
    bool,
    const OptionalTensor&,
    const OptionalTensor&) {}

void fused_sgd_step(
    at::TensorList,
    at::TensorList,
    at::TensorList,
    double,
    double,
    double,
    double,
    bool,
    bool,
    bool,
    const OptionalTensor&,
    const OptionalTensor&) {}

} // namespace

void register_shape_kernels() {
  using torch::Library;
  static auto* shapes = new Library(
      Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  shapes->impl("_local_scalar_dense", &local_scalar);
  shapes->impl("_copy_from", &copy_from);
  shapes->impl("index_select", &index_select);
  shapes->impl("embedding_dense_backward", &embedding_dense_backward);
  shapes->impl("native_layer_norm", &native_layer_norm);
  shapes->impl("native_layer_norm_backward", &native_layer_norm_backward);
  shapes->impl("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  shapes->impl(
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      &flash_attention_backward);
  shapes->impl("_fused_adam_", &fused_step);
  shapes->impl("_fused_adamw_", &fused_step);
  shapes->impl("_fused_sgd_", &fused_sgd_step);
  static auto* composed = new Library(
      Library::IMPL,
      "aten",
      c10::DispatchKey::AutogradPrivateUse1,
      __FILE__,
      __LINE__);
  composed->impl("scaled_dot_product_attention", &attention);
}

} // namespace fsdp
