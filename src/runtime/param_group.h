#pragma once
// The parameters of one fully_shard call: gathered, released and reduced
// together.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/sharded_param.h"

namespace fsdp {

/// What an engine keeps of a group: where its gathered memory is.
class EngineSlot {
 public:
  virtual ~EngineSlot() = default;
};

struct ParamGroup {
  std::string unit;       ///< qualified name of the module; "" is the root
  std::uint32_t tree = 0; ///< UnitTree::number
  std::vector<std::unique_ptr<ShardedParam>> params;
  std::vector<std::size_t> offsets; ///< of each parameter, when gathered
  std::size_t gathered_bytes = 0;
  /// Since the last reduction some backward kept its gradients (the same on
  /// every rank): the next one reduces in the reduce dtype.
  bool has_unreduced_backward = false;
  std::unique_ptr<EngineSlot> slot; ///< of the engine that was told of it
  std::uint64_t entry = 0;          ///< the tree's entry that last published it

  /// Fills offsets and gathered_bytes from the parameters' compute dtypes; each
  /// parameter begins at a multiple of 64 bytes.
  void lay_out();
  std::int64_t numel() const; ///< of all parameters, over all ranks
  std::string describe() const;
};

/// The dtypes of one reduction, the same on every rank.
struct ReductionTypes {
  c10::ScalarType wire;   ///< in which gradients are handed to the other ranks
  c10::ScalarType result; ///< of the sum
};

/// Gradients travel in the compute dtype where the sum can widen them, else in
/// the reduce dtype. `group` has a trainable parameter.
ReductionTypes reduction_types(const ParamGroup& group);

} // namespace fsdp
