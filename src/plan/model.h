#pragma once
// What the planner knows of a model: its parameters, grouped into the units
// that are gathered together, and the numbers that its compute and activations
// follow from.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/transformer.h"

namespace fsdp::plan {

struct ParamShape {
  std::string name;
  std::vector<std::int64_t> shape; ///< empty: one element

  /// Dim 0, which is what ranks share out; 1 for a scalar.
  std::int64_t rows() const;
  /// Elements of one row.
  std::int64_t row_numel() const;
  std::int64_t numel() const;
};

/// One fully_shard unit.
struct UnitShape {
  std::string name;
  std::vector<ParamShape> params;

  std::int64_t numel() const;
};

struct ModelShape {
  std::string name;
  /// Embeddings, final norm, head: what no block owns. Gathered first, kept
  /// through the forward.
  UnitShape root;
  /// In the forward's order.
  std::vector<UnitShape> blocks;
  /// Absent where only tensors are known (a file of weights): then there is no
  /// estimate of activations and of time.
  std::optional<Transformer> transformer;

  std::int64_t num_params() const;
};

/// The parameters of `transformer`, as its usual implementation registers them.
/// Throws ConfigError for a shape that makes no model (heads that do not divide
/// hidden, ...) or whose parameters overflow 64 bits.
ModelShape model_of(const Transformer& transformer);

/// A decoder of about `num_params` parameters, shaped like the models that were
/// trained at that size. Throws ConfigError unless 1e5 <= num_params <= 1e15.
Transformer assumed_transformer(std::int64_t num_params);

/// Units from the names of a file of weights: "model.layers.17.mlp.up.weight"
/// belongs to block 17. Throws ConfigError if there are no tensors.
ModelShape model_of_tensors(std::string name, std::vector<ParamShape> tensors);

} // namespace fsdp::plan
