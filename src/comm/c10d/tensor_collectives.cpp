// The collectives of ProcessGroup that take tensors.

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "comm/c10d/scalar_type.h"
#include "comm/communicator.h"
#include "comm/error_text.h"
#include "fsdp/error.h"
#include "fsdp/process_group.h"

namespace fsdp {
namespace {

/// Calls `move` with contiguous memory that holds the tensor, and puts what it
/// holds afterwards into the tensor.
template <typename Move>
void in_place(
    const ProcessGroup& group,
    const char* caller,
    const at::Tensor& tensor,
    const Move& move) {
  if (!tensor.is_cpu()) {
    throw UsageError(
        rank_prefix(group.rank()) + caller + ": the tensor is on " +
        tensor.device().str() + "; pass one on the CPU");
  }
  c10::AutoGradMode grad_off(false);
  const at::Tensor whole = tensor.detach().contiguous();
  move(whole.mutable_data_ptr(), to_dtype(whole.scalar_type()));
  if (!tensor.is_contiguous()) {
    tensor.detach().copy_(whole);
  }
}

} // namespace

void ProcessGroup::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  in_place(*this, "all_reduce", tensor, [&](void* data, DType dtype) {
    communicator().all_reduce(data, tensor.numel(), dtype, op, "all_reduce");
  });
}

void ProcessGroup::broadcast(const at::Tensor& tensor, int src) const {
  in_place(*this, "broadcast", tensor, [&](void* data, DType dtype) {
    communicator().broadcast(data, tensor.numel(), dtype, src, "broadcast");
  });
}

} // namespace fsdp
