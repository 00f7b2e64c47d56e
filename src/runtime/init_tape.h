#pragma once
// How the tensors of a MetaInitGuard were made: the calls, in order.
//
// Values are known by storage, not by tensor: views, detach(), data() and
// set_data() make other tensors of one storage without a call that could be
// recorded. Every meta storage that the guard makes carries a mark (the context
// of its data pointer) with its tape and its number there. So the tape lives as
// long as a tensor of it, and an address that is used again is never mistaken.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp {

class InitTape : public std::enable_shared_from_this<InitTape> {
 public:
  /// What a tensor showed at the time.
  struct View {
    std::size_t storage = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;
    std::size_t storage_bytes = 0;
    bool covers_storage = false; ///< each element once
  };

  struct Argument {
    enum class Kind { kConstant, kView, kList, kOptionalList, kGenerator };
    Kind kind = Kind::kConstant;
    c10::IValue constant; ///< a tensor in it is a copy of the tape's own
    View view;
    std::vector<Argument> items;
    std::size_t generator = 0;
  };

  struct Step {
    c10::OperatorHandle op;
    std::vector<Argument> arguments;
    /// The tensors returned, lists flattened; none where undefined.
    std::vector<std::optional<View>> results;
    /// Fills all of the first argument's storage without reading it.
    bool overwrites_first = false;
    /// Needs no tensor and no random number: may be done when it is needed.
    bool can_wait = false;
  };

  explicit InitTape(std::uint64_t number) : number_(number) {}

  std::uint64_t number() const { return number_; } ///< in order of creation
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<at::Generator>& generators() const { return generators_; }
  std::size_t num_storages() const { return storages_.size(); }
  /// The tensors that were returned by calls and are still alive.
  std::vector<at::Tensor> living_tensors() const;

  /// Marks a new storage as the tape's. `tensor` is on the meta device.
  void adopt(const at::Tensor& tensor);
  /// `tensor` is one of the tape's.
  View view_of(const at::Tensor& tensor) const;
  /// The snapshot of `generator` as it is now.
  std::size_t generator_number(const at::Generator& generator);
  void append(Step step) { steps_.push_back(std::move(step)); }
  /// After a call: notes the tensor and how often it has been written.
  void note(const at::Tensor& tensor);
  /// Whether a call that is not on the tape has written to `tensor`, which
  /// shows or showed the storage of `full`, one of the tape's.
  bool missed_a_write(const at::Tensor& tensor, const at::Tensor& full) const;

  /// Raw access to the memory of the tape's tensors, which they do not have,
  /// throws a text of ours while this is on.
  void guard_memory(bool on);
  /// Off for one tensor, since LibTorch's own functions may compare addresses.
  static void guard_memory_of(const at::Tensor& tensor, bool on);

 private:
  const std::uint64_t number_;
  std::vector<Step> steps_;
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    std::uint32_t version = 0; ///< the highest of its tensors
  };
  std::vector<Storage> storages_;
  struct Noted {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak;
    std::uint32_t version = 0;
  };
  std::unordered_map<const c10::TensorImpl*, Noted> tensors_;
  struct KnownGenerator {
    at::Generator original;
    at::Tensor state;
  };
  std::vector<KnownGenerator> known_generators_;
  std::vector<at::Generator> generators_; ///< as they were at their first use
};

/// The tape that `tensor`'s storage belongs to, or null.
std::shared_ptr<InitTape> tape_of(const at::Tensor& tensor);

} // namespace fsdp
