#pragma once
// Building a model without memory, so that no rank ever holds all of it:
//
//   Gpt model{nullptr};
//   {
//     fsdp::MetaInitGuard meta;
//     model = Gpt(config); // shapes only
//   }
//   fully_shard(...);               // still without memory
//   fsdp::materialize(model, seed); // each rank gets its own rows
//
// The weights are bit for bit those of `manual_seed(seed); model = Gpt(config)`
// at every world size. docs/architecture.md, "Meta start", tells how.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "fsdp/export.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

/// While it lives, tensors that this thread makes are on the meta device: they
/// have a shape and no memory. What is done to make and fill them is recorded
/// for materialize(). Works for every LibTorch module; guards nest (the inner
/// ones go on with the outer one's record).
///
/// Tensors that exist already keep their values; what the module reads of them
/// is copied into the record. Inside the guard, LibTorch functions that need a
/// value (item(), equal(), a write of such a tensor into one with values) throw
/// UsageError with their name, and raw access to the data, as
/// at::tensor(vector) does, throws LibTorch's error with a text of ours:
/// compute it before the guard (or write literals as torch::tensor({...})).
/// at::from_blob() keeps its memory. at::manual_seed() has no effect on what is
/// recorded.
class FSDP_API MetaInitGuard {
 public:
  MetaInitGuard();
  ~MetaInitGuard();
  MetaInitGuard(const MetaInitGuard&) = delete;
  MetaInitGuard& operator=(const MetaInitGuard&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

/// Gives values to the parameters and buffers of `module` that are on the meta
/// device, by doing again what was recorded while they were built, with
/// at::manual_seed(seed) before it. A sharded parameter gets this rank's rows,
/// another one the whole value. Memory: one full tensor (and what its
/// initialisation needs) at a time. Local: every rank calls it with the same
/// seed. The random generator is afterwards as it was before.
///
/// What the guard's scope made besides and is still alive gets its value too
/// (tables kept as plain members), except other modules' trainable parameters:
/// those wait for a materialize() of their own, which begins the record anew,
/// so that piece by piece with one seed gives the same values as all at once.
/// Parts that have values stay as they are.
///
/// Throws, before anything is changed, UsageError that names the parameters and
/// buffers which no guard has recorded, or which were written to outside of it;
/// in the midst, Error, if the shape of a result depends on values.
FSDP_API void materialize(torch::nn::Module& module, std::uint64_t seed);

/// For a holder: `materialize(model, seed)`.
template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
void materialize(const Holder& holder, std::uint64_t seed) {
  materialize(*holder.ptr(), seed);
}

/// Gives memory of arbitrary content to what is on the meta device in `module`:
/// this rank's rows of sharded parameters, the whole of other tensors. Fill it
/// before use; shard_infos() tells which rows they are. `device` must be the
/// mesh's.
FSDP_API void to_empty(
    torch::nn::Module& module, c10::Device device = c10::DeviceType::CPU);

template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
void to_empty(const Holder& holder, c10::Device device = c10::DeviceType::CPU) {
  to_empty(*holder.ptr(), device);
}

} // namespace fsdp
