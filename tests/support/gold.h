#pragma once
// The fixture GOLD: Linear(3,5), tanh, Linear(5,2), every tensor filled with
// 0.1 sin(k + 1); 24 fixed rows, mean square loss. Its numbers are float64
// results of one process.

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <cstdint>

#include "fsdp/hooked.h"

namespace fsdp::testing {

inline void fill_with_sines(torch::nn::Module& module, double scale = 0.1) {
  c10::AutoGradMode grad_off(false);
  for (auto& param : module.parameters()) {
    const auto k = at::arange(1, param.numel() + 1, at::kDouble);
    param.copy_((scale * at::sin(k)).view(param.sizes()));
  }
}

struct GoldImpl : torch::nn::Module {
  GoldImpl()
      : first(register_module(
            "first", HookedHolder<torch::nn::LinearImpl>(3, 5))),
        second(register_module(
            "second", HookedHolder<torch::nn::LinearImpl>(5, 2))) {
    fill_with_sines(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  HookedHolder<torch::nn::LinearImpl> first;
  HookedHolder<torch::nn::LinearImpl> second;
};
FSDP_MODULE(Gold);

struct GoldRows {
  at::Tensor x; ///< [rows, 3]
  at::Tensor y; ///< [rows, 2]
};

/// Rows [begin, begin + count) of the 24.
inline GoldRows gold_rows(std::int64_t begin = 0, std::int64_t count = 24) {
  const auto i = at::arange(24, at::kDouble);
  const auto x = at::sin(0.1 * at::arange(72, at::kDouble)).view({24, 3});
  const auto y = at::stack({at::cos(0.2 * i), at::sin(0.3 * i)}, 1);
  return {
      x.narrow(0, begin, count).to(at::kFloat),
      y.narrow(0, begin, count).to(at::kFloat)};
}

/// The rows of `rank` of `size`.
inline GoldRows gold_rows_of(int rank, int size) {
  return gold_rows(rank * 24 / size, 24 / size);
}

} // namespace fsdp::testing
