// What LibTorch's functions do with tensors of the dry device.

#include "dryrun/dry_device.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/error.h"
#include "runtime/memory_account.h"

namespace fsdp {
namespace {

at::TensorOptions dry(at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions().dtype(dtype).device(dry_device());
}

std::int64_t bytes_now() {
  return MemoryAccount::current().report().total.current;
}

TEST(DryDevice, TensorsCountWhileTheyLive) {
  const std::int64_t before = bytes_now();
  {
    const at::Tensor a = at::empty({1 << 20, 1 << 20}, dry()); // 4 TiB
    EXPECT_EQ(bytes_now() - before, std::int64_t{1} << 42);
    EXPECT_EQ(a.device().str(), "dry:0");
    EXPECT_TRUE(is_dry_address(a.data_ptr()));
  }
  EXPECT_EQ(bytes_now(), before);
}

TEST(DryDevice, AProductHasItsShape) {
  const at::Tensor a = at::empty({6, 4}, dry());
  const at::Tensor b = at::empty({4, 5}, dry());
  const at::Tensor c = at::matmul(a, b);
  EXPECT_EQ(c.sizes(), (std::vector<std::int64_t>{6, 5}));
  EXPECT_EQ(c.device().type(), c10::DeviceType::PrivateUse1);
}

TEST(DryDevice, AViewTakesNoMemory) {
  const at::Tensor a = at::empty({6, 4}, dry());
  const std::int64_t before = bytes_now();
  const at::Tensor view = a.view({2, 12}).transpose(0, 1).narrow(0, 3, 4);
  EXPECT_EQ(bytes_now(), before);
  EXPECT_TRUE(view.is_alias_of(a));
  EXPECT_EQ(view.storage_offset(), 3);
}

TEST(DryDevice, InPlaceCallsKeepTheTensor) {
  at::Tensor a = at::empty({6, 4}, dry());
  const void* data = a.data_ptr();
  a.mul_(2).add_(a);
  EXPECT_EQ(a.data_ptr(), data);
}

TEST(DryDevice, GradientsHaveTheirShapes) {
  const at::Tensor w = at::empty({5, 4}, dry()).requires_grad_();
  const at::Tensor x = at::empty({6, 4}, dry());
  at::gelu(at::linear(x, w)).sum().backward();
  EXPECT_EQ(w.grad().sizes(), w.sizes());
}

TEST(DryDevice, ANumberIsOne) {
  EXPECT_EQ(at::empty({3}, dry()).sum().item<double>(), 1.0);
}

TEST(DryDevice, CopiesToAndFromTheHostHaveTheirShapes) {
  const at::Tensor host = at::ones({3, 2});
  const at::Tensor there = host.to(dry_device());
  EXPECT_EQ(there.sizes(), host.sizes());
  EXPECT_EQ(there.cpu().sizes(), host.sizes());
}

TEST(DryDevice, AShapeThatDependsOnValuesIsRefused) {
  const at::Tensor a = at::empty({6}, dry());
  try {
    at::nonzero(a);
    FAIL() << "expected UsageError";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        testing::StartsWith(
            "dry run: 'aten::nonzero' gives no shape without values ("));
  }
}

} // namespace
} // namespace fsdp
