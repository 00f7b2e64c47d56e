#pragma once
// Modules that are made twice, eagerly and under a MetaInitGuard.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>

#include "fsdp/meta_init.h"

namespace fsdp::testing {

using Make = std::function<std::shared_ptr<torch::nn::Module>()>;

constexpr std::uint64_t kSeed = 7;

inline std::shared_ptr<torch::nn::Module> make_eager(const Make& make) {
  at::manual_seed(kSeed);
  return make();
}

inline std::shared_ptr<torch::nn::Module> make_meta(const Make& make) {
  const MetaInitGuard guard;
  return make();
}

/// By value, dtype, layout and being trained; tied ones are tied in both.
inline void expect_same_tensors(
    const torch::OrderedDict<std::string, at::Tensor>& got,
    const torch::OrderedDict<std::string, at::Tensor>& expected) {
  ASSERT_EQ(got.keys(), expected.keys());
  for (const auto& item : expected) {
    const at::Tensor& tensor = got[item.key()];
    ASSERT_FALSE(tensor.is_meta()) << item.key();
    EXPECT_EQ(tensor.scalar_type(), item.value().scalar_type()) << item.key();
    EXPECT_EQ(tensor.strides(), item.value().strides()) << item.key();
    EXPECT_EQ(tensor.requires_grad(), item.value().requires_grad())
        << item.key();
    EXPECT_TRUE(at::equal(tensor, item.value())) << item.key() << "\n"
                                                 << tensor << "\nexpected\n"
                                                 << item.value();
    for (const auto& other : expected) {
      EXPECT_EQ(
          got[other.key()].is_same(tensor), other.value().is_same(item.value()))
          << item.key() << " and " << other.key();
    }
  }
}

inline void expect_same(
    const torch::nn::Module& got, const torch::nn::Module& expected) {
  expect_same_tensors(got.named_parameters(), expected.named_parameters());
  expect_same_tensors(got.named_buffers(), expected.named_buffers());
}

inline void expect_all_meta(const torch::nn::Module& module) {
  for (const auto& tensor : module.parameters()) {
    EXPECT_TRUE(tensor.is_meta());
  }
  for (const auto& buffer : module.named_buffers()) {
    EXPECT_TRUE(buffer.value().is_meta()) << buffer.key();
  }
}

inline void expect_replays(const Make& make) {
  const auto eager = make_eager(make);
  const auto meta = make_meta(make);
  expect_all_meta(*meta);
  materialize(*meta, kSeed);
  expect_same(*meta, *eager);
}

} // namespace fsdp::testing
