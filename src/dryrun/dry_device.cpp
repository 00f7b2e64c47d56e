// The registrations must stay in this file: a program that calls dry_device()
// then has them, also from a static library.

#include "dryrun/dry_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "dryrun/shape_call.h"
#include "dryrun/shape_kernels.h"
#include "fsdp/error.h"
#include "runtime/memory_account.h"

namespace fsdp {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

// No process has memory there: x86-64 and arm64 give user programs the lowest
// 2^47 to 2^56 bytes.
constexpr std::uintptr_t kFirstAddress = std::uintptr_t{1} << 60;
constexpr std::size_t kAlignment = 64;

/// Hands out addresses, each once, and counts.
class DryAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, 0);
    if (bytes == 0) {
      return {nullptr, device};
    }
    const std::size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::uintptr_t address = next_.fetch_add(room);
    return counted_data(
        reinterpret_cast<void*>(address),
        static_cast<std::int64_t>(bytes),
        device);
  }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  std::atomic<std::uintptr_t> next_{kFirstAddress};
};

DryAllocator& allocator() {
  static auto* the_allocator = new DryAllocator();
  return *the_allocator;
}

/// One device, one stream, nothing to wait for.
struct DryGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override {
    return the_device();
  }
  c10::Device getDevice() const override { return the_device(); }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, the_device());
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, the_device());
  }
  static c10::Device the_device() { return {kType, 0}; }
};

struct DryHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  // Seeded together with the CPU's; nothing draws from it.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return DryGuard::the_device();
  }
  void resizePrivateUse1Bytes(
      const c10::Storage& storage, std::size_t bytes) const override {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        allocator().allocate(bytes));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

void name_the_type() {
  try {
    c10::register_privateuse1_backend(kDryDeviceType);
  } catch (const c10::Error&) {
    throw Error(
        std::string("dry_device: the program uses LibTorch's PrivateUse1 for "
                    "device '") +
        c10::DeviceTypeName(kType, /*lower_case=*/true) +
        "'; a dry run needs it");
  }
  at::RegisterPrivateUse1HooksInterface(new DryHooks());
  register_shape_kernels();
}

at::Tensor empty(
    c10::SymIntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic_symint(
      sizes,
      &allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::get_default_dtype_as_scalartype()),
      format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_symint_generic(
      sizes,
      strides,
      &allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

void call_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_with_shapes(op, *stack);
}

} // namespace

c10::Device dry_device() {
  static std::once_flag once;
  std::call_once(once, name_the_type);
  return DryGuard::the_device();
}

bool is_dry_address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) >= kFirstAddress;
}

} // namespace fsdp

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, fsdp::DryGuard)
} // namespace c10::impl

namespace {
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &fsdp::allocator())
} // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(
      torch::CppFunction::makeFromBoxedFunction<&fsdp::call_on_shapes>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &fsdp::empty);
  library.impl("empty_strided", &fsdp::empty_strided);
}
