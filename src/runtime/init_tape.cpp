#include "runtime/init_tape.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/equal.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace fsdp {

namespace {

struct Mark {
  std::shared_ptr<InitTape> tape;
  std::size_t storage;
};

void release_mark(void* mark) {
  delete static_cast<Mark*>(mark);
}

const Mark* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) {
    return nullptr;
  }
  // Past the check that forbids access to the data.
  const at::DataPtr& data =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &release_mark
             ? static_cast<const Mark*>(data.get_context())
             : nullptr;
}

std::uint32_t version_of(const at::Tensor& tensor) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : 0;
}

void guard(c10::StorageImpl& storage, bool on) {
  if (on) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "the memory of a tensor is asked for, but inside MetaInitGuard it has "
        "none yet: fill it with tensor functions or torch::tensor({...}), or "
        "make it before the guard");
  } else {
    storage.clear_data_ptr_access_error_msg_();
  }
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

} // namespace

std::shared_ptr<InitTape> tape_of(const at::Tensor& tensor) {
  const Mark* mark = mark_of(tensor);
  return mark ? mark->tape : nullptr;
}

std::vector<at::Tensor> InitTape::living_tensors() const {
  std::vector<at::Tensor> living;
  for (const auto& [address, noted] : tensors_) {
    if (auto tensor = noted.weak.lock()) {
      living.emplace_back(std::move(tensor));
    }
  }
  return living;
}

void InitTape::adopt(const at::Tensor& tensor) {
  auto* mark = new Mark{shared_from_this(), storages_.size()};
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, mark, &release_mark, c10::DeviceType::Meta));
  storages_.push_back({tensor.storage().getWeakStorageImpl(), 0});
}

void InitTape::guard_memory_of(const at::Tensor& tensor, bool on) {
  guard(*tensor.storage().unsafeGetStorageImpl(), on);
}

void InitTape::guard_memory(bool on) {
  for (const Storage& storage : storages_) {
    if (const auto living = storage.weak.lock()) {
      guard(*living, on);
    }
  }
}

InitTape::View InitTape::view_of(const at::Tensor& tensor) const {
  const std::size_t bytes = tensor.storage().nbytes();
  return {
      .storage = mark_of(tensor)->storage,
      .dtype = tensor.scalar_type(),
      .sizes = tensor.sizes().vec(),
      .strides = tensor.strides().vec(),
      .offset = tensor.storage_offset(),
      .storage_bytes = bytes,
      .covers_storage = tensor.storage_offset() == 0 &&
                        tensor.nbytes() == bytes &&
                        tensor.is_non_overlapping_and_dense()};
}

// Calls on meta tensors do not advance a generator, so another state means that
// the program has changed it in between.
std::size_t InitTape::generator_number(const at::Generator& generator) {
  const at::Tensor state = state_of(generator);
  for (std::size_t i = known_generators_.size(); i-- > 0;) {
    if (known_generators_[i].original == generator) {
      if (at::equal(known_generators_[i].state, state)) {
        return i;
      }
      break;
    }
  }
  known_generators_.push_back({generator, state});
  generators_.push_back(generator.clone());
  return generators_.size() - 1;
}

void InitTape::note(const at::Tensor& tensor) {
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr || mark->tape.get() != this) {
    return;
  }
  const std::uint32_t version = version_of(tensor);
  auto& highest = storages_[mark->storage].version;
  highest = std::max(highest, version);
  const auto [noted, is_new] = tensors_.try_emplace(
      tensor.unsafeGetTensorImpl(),
      Noted{
          c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(
              tensor.getIntrusivePtr()),
          version});
  noted->second.version = version;
}

// Views count their writes together; set_data() keeps a tensor's count and
// gives it another storage.
bool InitTape::missed_a_write(
    const at::Tensor& tensor, const at::Tensor& full) const {
  const std::uint32_t version = version_of(tensor);
  const auto noted = tensors_.find(tensor.unsafeGetTensorImpl());
  return version > storages_[mark_of(full)->storage].version &&
         (noted == tensors_.end() || version > noted->second.version);
}

} // namespace fsdp
