#include "dryrun/shape_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "runtime/map_tensors.h"

namespace fsdp {
namespace {

constexpr auto kDry = c10::DeviceType::PrivateUse1;
constexpr auto kMeta = c10::DeviceType::Meta;

at::Tensor over_storage(
    c10::Storage storage, const at::Tensor& shape, c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), shape.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      shape.sizes(), shape.strides(), shape.storage_offset());
  return tensor;
}

/// The dry tensors of one call and the meta tensors that stand for them.
class Standins {
 public:
  at::Tensor meta_of(const at::Tensor& tensor) {
    if (tensor.device().type() != kDry) {
      // A number of the host's that a dry tensor is combined with.
      return tensor.dim() == 0 || tensor.is_meta() ? tensor
                                                   : shaped_like(tensor, kMeta);
    }
    for (const Tensors& known : tensors_) {
      if (known.dry.is_same(tensor)) {
        return known.meta;
      }
    }
    tensors_.push_back(
        {tensor,
         over_storage(
             meta_storage_of(tensor), tensor, c10::DispatchKey::Meta)});
    return tensors_.back().meta;
  }

  at::Tensor dry_of(const at::Tensor& meta) {
    if (!meta.is_meta()) {
      return meta;
    }
    for (const Tensors& known : tensors_) {
      if (known.meta.is_same(meta)) {
        follow(known.dry, meta);
        return known.dry;
      }
    }
    for (const Storages& known : storages_) {
      if (known.meta.is_alias_of(meta.storage())) {
        return over_storage(known.dry, meta, c10::DispatchKey::PrivateUse1);
      }
    }
    return shaped_like(meta, kDry);
  }

 private:
  struct Tensors {
    at::Tensor dry;
    at::Tensor meta;
  };
  struct Storages {
    c10::Storage dry;
    c10::Storage meta;
  };

  c10::Storage meta_storage_of(const at::Tensor& dry) {
    for (const Storages& known : storages_) {
      if (known.dry.is_alias_of(dry.storage())) {
        return known.meta;
      }
    }
    c10::Storage meta(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t{},
        dry.storage().nbytes(),
        at::DataPtr(nullptr, c10::Device(kMeta)),
        c10::GetAllocator(kMeta),
        /*resizable=*/true));
    storages_.push_back({dry.storage(), meta});
    return meta;
  }

  /// An output argument takes the shape that the call gave it.
  static void follow(const at::Tensor& dry, const at::Tensor& meta) {
    if (dry.sizes() == meta.sizes() && dry.strides() == meta.strides()) {
      return;
    }
    if (meta.storage().nbytes() > dry.storage().nbytes()) {
      dry.unsafeGetTensorImpl()->set_storage_keep_dtype(
          shaped_like(meta, kDry).storage());
    }
    dry.unsafeGetTensorImpl()->set_sizes_and_strides(
        meta.sizes(), meta.strides(), meta.storage_offset());
  }

  std::vector<Tensors> tensors_;
  std::vector<Storages> storages_;
};

std::string first_sentence(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));
}

} // namespace

void call_with_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t begin = stack.size() - schema.arguments().size();
  Standins standins;
  for (std::size_t i = begin; i < stack.size(); ++i) {
    const std::string& name = schema.arguments()[i - begin].name();
    stack[i] = name == "device"
                   ? c10::IValue(c10::Device(kMeta))
                   : map_tensors(stack[i], [&](const at::Tensor& tensor) {
                       return standins.meta_of(tensor);
                     });
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(&stack);
  } catch (const c10::Error& error) {
    throw UsageError(
        "dry run: '" + toString(schema.operator_name()) +
        "' gives no shape without values (" + first_sentence(error) +
        "); leave it out of what is run dry");
  }
  for (std::size_t i = begin; i < stack.size(); ++i) {
    stack[i] = map_tensors(stack[i], [&](const at::Tensor& tensor) {
      return standins.dry_of(tensor);
    });
  }
}

} // namespace fsdp
