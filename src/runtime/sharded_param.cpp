#include "runtime/sharded_param.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "comm/c10d/scalar_type.h"
#include "comm/error_text.h"
#include "fsdp/error.h"
#include "runtime/memory_account.h"
#include "runtime/param_registry.h"
#include "runtime/sizes_text.h"

namespace fsdp {

ShardedParam::ShardedParam(
    at::Tensor parameter,
    std::string name,
    ProcessGroup group,
    const MixedPrecisionPolicy& policy,
    c10::Device device)
    : name_(std::move(name)),
      group_(std::move(group)),
      policy_(policy),
      device_(device),
      registered_(std::move(parameter)),
      full_sizes_(registered_.sizes().vec()) {
  // Tensors made in inference mode could never be trained with.
  c10::InferenceMode inference_off(false);
  c10::AutoGradMode grad_off(false);
  for (std::size_t dim = 1; dim < full_sizes_.size(); ++dim) {
    row_numel_ *= full_sizes_[dim];
  }
  const RowRange range = rows();
  const MemoryScope scope(MemoryComponent::kParameters);
  if (registered_.is_meta()) {
    awaited_ = registered_.detach();
  }
  // A copy: a view would keep the full parameter alive.
  local_ = registered_.detach().narrow(0, range.begin, range.length).clone();
  registered_.mutable_grad().reset();
  show_shard();
  make_unsharded_tensor();
  register_sharded_param(registered_, this);
}

ShardedParam::~ShardedParam() {
  unregister_sharded_param(registered_);
}

RowRange ShardedParam::rows(int rank) const {
  return shard_rows(full_sizes_[0], group_.size(), rank);
}

c10::ScalarType ShardedParam::compute_dtype() const {
  return policy_.param_dtype && c10::isFloatingType(own_dtype())
             ? *policy_.param_dtype
             : own_dtype();
}

c10::ScalarType ShardedParam::reduce_dtype() const {
  return policy_.reduce_dtype.value_or(compute_dtype());
}

std::size_t ShardedParam::compute_bytes() const {
  return static_cast<std::size_t>(full_numel()) *
         c10::elementSize(compute_dtype());
}

void ShardedParam::copy_rows_to(std::byte* full, c10::Device device) const {
  c10::AutoGradMode grad_off(false);
  const std::size_t begin = static_cast<std::size_t>(rows().begin) *
                            static_cast<std::size_t>(row_numel_) *
                            c10::elementSize(compute_dtype());
  at::from_blob(
      full + begin,
      local_.sizes(),
      at::TensorOptions().dtype(compute_dtype()).device(device))
      .copy_(local_);
}

std::string ShardedParam::describe() const {
  return "parameter '" + name_ + "' of " +
         (unit_.empty() ? std::string("the root unit")
                        : "unit '" + unit_ + "'");
}

std::string ShardedParam::not_gathered_text() const {
  return rank_prefix(group_.rank()) + describe() +
         " is used while it is not gathered: outside its unit's forward and "
         "backward, or past the unit's hooks; call the unit through its "
         "holder, "
         "or unshard() it first";
}

// A loss over the shard itself, by a forward past the hooks, would give a local
// gradient that nobody reduces.
void ShardedParam::show_shard() {
  become(registered_, local_);
  if (!registered_.requires_grad()) {
    return;
  }
  if (shard_guard_) {
    shard_guard_->install(registered_);
    return;
  }
  // The graph may outlive this.
  const auto refuse = [parameter = registered_] {
    if (const ShardedParam* param = find_sharded_param(parameter)) {
      throw UsageError(param->not_gathered_text());
    }
  };
  shard_guard_ =
      std::make_unique<PinnedAccumulator>(registered_, refuse, [] {});
}

void ShardedParam::make_unsharded_tensor() {
  c10::InferenceMode inference_off(false);
  const auto device = local_.device();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t{},
      compute_bytes(),
      at::DataPtr(nullptr, device),
      /*allocator=*/nullptr,
      /*resizable=*/false);
  unsharded_ = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      local_.key_set(),
      c10::scalarTypeToTypeMeta(compute_dtype()));
  unsharded_.unsafeGetTensorImpl()->set_sizes_contiguous(full_sizes_);
  accumulator_.reset();
}

void ShardedParam::to_unsharded(const std::byte* data) {
  auto* storage = unsharded_.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(
      at::DataPtr(const_cast<std::byte*>(data), local_.device()));
  become(registered_, unsharded_);
  is_unsharded_ = true;
  follow_requires_grad();
}

void ShardedParam::follow_requires_grad() {
  if (!registered_.requires_grad()) {
    return;
  }
  if (accumulator_) {
    accumulator_->install(registered_);
  } else {
    accumulator_ = std::make_unique<PinnedAccumulator>(
        registered_, grad_hooks_.before, grad_hooks_.after);
  }
}

void ShardedParam::to_sharded() {
  auto* storage = unsharded_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, local_.device()));
  // Without the text a read of the empty storage would end the process.
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      not_gathered_text());
  show_shard();
  is_unsharded_ = false;
}

void ShardedParam::give_full_value(const at::Tensor& full) {
  const RowRange range = rows();
  const MemoryScope scope(MemoryComponent::kParameters);
  // A copy: a view would keep the full parameter alive.
  give_rows(full.narrow(0, range.begin, range.length)
                .to(device_,
                    registered_.scalar_type(),
                    /*non_blocking=*/false,
                    /*copy=*/true)
                .contiguous());
}

void ShardedParam::give_rows(at::Tensor given) {
  awaited_.reset();
  local_ = std::move(given);
  count_as(local_, MemoryComponent::kParameters);
  // Of the meta device; autograd compares devices.
  shard_guard_.reset();
  show_shard();
  make_unsharded_tensor();
}

bool ShardedParam::adopt_user_changes() {
  if (is_unsharded_) {
    if (registered_.storage().unsafeGetStorageImpl() !=
        unsharded_.storage().unsafeGetStorageImpl()) {
      throw UsageError(
          rank_prefix(group_.rank()) + describe() +
          " was replaced (by to(), a load or set_data) while it was gathered, "
          "which would be lost; reshard() its unit first");
    }
    return false;
  }
  const bool untouched =
      registered_.storage().unsafeGetStorageImpl() ==
          local_.storage().unsafeGetStorageImpl() &&
      registered_.storage_offset() == local_.storage_offset() &&
      registered_.scalar_type() == local_.scalar_type() &&
      registered_.sizes() == local_.sizes();
  if (untouched) {
    return false;
  }
  if (registered_.sizes() != local_.sizes()) {
    throw UsageError(
        rank_prefix(group_.rank()) + describe() +
        " was replaced by a tensor of shape " +
        sizes_text(registered_.sizes()) + ", its shard has shape " +
        sizes_text(local_.sizes()) +
        "; load or assign this rank's rows, or load before fully_shard");
  }
  const auto previous = compute_dtype();
  {
    c10::InferenceMode inference_off(false);
    c10::AutoGradMode grad_off(false);
    local_ = registered_.detach().contiguous();
    count_as(local_, MemoryComponent::kParameters);
    shard_guard_.reset(); // of the former dtype
    show_shard();
  }
  if (compute_dtype() == previous) {
    accumulator_.reset();
    return false;
  }
  make_unsharded_tensor();
  return true;
}

void ShardedParam::begin_backward() {
  if (registered_.grad().defined()) {
    put_aside_ = registered_.grad();
    registered_.mutable_grad().reset();
  }
}

void ShardedParam::take_grad() {
  at::Tensor grad = registered_.grad();
  if (!grad.defined()) {
    return;
  }
  registered_.mutable_grad().reset();
  if (grad.is_sparse()) {
    throw UsageError(
        rank_prefix(group_.rank()) + describe() +
        " has a sparse gradient, which cannot be reduced; make the embedding "
        "with sparse(false)");
  }
  c10::AutoGradMode grad_off(false);
  const MemoryScope scope(MemoryComponent::kReduction);
  taken_ = taken_.defined() ? taken_.add(grad) : grad.detach();
  count_as(taken_, MemoryComponent::kReduction);
}

void ShardedParam::keep_unreduced() {
  if (!taken_.defined()) {
    return;
  }
  c10::AutoGradMode grad_off(false);
  const MemoryScope scope(MemoryComponent::kReduction);
  // A copy: what is taken may lie where the next backward's gradients go.
  kept_ = kept_.defined() ? kept_.add_(taken_)
                          : taken_.to(reduce_dtype(), false, /*copy=*/true);
  taken_.reset();
}

at::Tensor ShardedParam::release_full_grad() {
  if (kept_.defined()) {
    keep_unreduced();
    return std::exchange(kept_, {});
  }
  c10::AutoGradMode grad_off(false);
  const MemoryScope scope(MemoryComponent::kReduction);
  // Other ranks read the memory, not the tensor: a negative bit would be lost.
  return taken_.defined() ? std::exchange(taken_, {}).resolve_neg().contiguous()
                          : at::Tensor();
}

void ShardedParam::set_reduced_grad(at::Tensor grad) {
  c10::AutoGradMode grad_off(false);
  const MemoryScope scope(MemoryComponent::kGradients);
  if (grad.scalar_type() != own_dtype()) {
    grad = grad.to(own_dtype());
  }
  reduced_ = reduced_.defined() ? reduced_.add(grad) : std::move(grad);
}

void ShardedParam::end_backward() {
  c10::AutoGradMode grad_off(false);
  at::Tensor grad = std::exchange(reduced_, {});
  at::Tensor earlier = std::exchange(put_aside_, {});
  if (grad.defined() && earlier.defined()) {
    grad = earlier.add_(grad);
  } else if (earlier.defined()) {
    grad = std::move(earlier);
  }
  if (grad.defined()) {
    registered_.mutable_grad() = std::move(grad);
  }
}

void ShardedParam::abandon_backward() {
  // A .grad of full shape is a leftover of the failed backward.
  if (registered_.grad().defined() &&
      registered_.grad().sizes() != local_.sizes()) {
    registered_.mutable_grad().reset();
  }
  taken_.reset();
  kept_.reset();
  reduced_.reset();
  end_backward();
}

} // namespace fsdp
