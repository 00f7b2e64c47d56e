// From the numbers of a transformer to its parameters.

#include "plan/transformer.h"

#include <string>
#include <utility>

#include "fsdp/error.h"
#include "plan/count.h"
#include "plan/model.h"

namespace fsdp::plan {

namespace {

constexpr std::int64_t kMostParams = 2'000'000'000'000'000;
constexpr std::int64_t kMostLayers = 1'000'000;

[[noreturn]] void refuse(const Transformer& t, const std::string& what) {
  throw ConfigError("model '" + t.name + "': " + what);
}

void check_positive(
    const Transformer& t, const char* what, std::int64_t value) {
  if (value < 1) {
    refuse(
        t,
        std::string(what) + " is " + std::to_string(value) +
            ": expected at least 1");
  }
}

void check_not_negative(
    const Transformer& t, const char* what, std::int64_t value) {
  if (value < 0) {
    refuse(
        t,
        std::string(what) + " is " + std::to_string(value) +
            ": expected 0 or more");
  }
}

void check_shape(const Transformer& t) {
  check_positive(t, "the number of layers", t.layers);
  check_not_negative(t, "the number of encoder layers", t.encoder_layers);
  check_positive(t, "the hidden size", t.hidden);
  check_positive(t, "the number of heads", t.heads);
  check_positive(t, "the number of key-value heads", t.kv_heads);
  check_positive(t, "the size of a head", t.head_dim);
  check_positive(t, "the width of the feed-forward", t.ffn);
  check_positive(t, "the vocabulary", t.vocab);
  check_not_negative(t, "the number of positions", t.positions);
  check_not_negative(t, "the number of relative buckets", t.relative_buckets);
  check_not_negative(t, "the number of experts", t.experts);
  if (t.layers > kMostLayers || t.encoder_layers > kMostLayers) {
    refuse(
        t,
        std::to_string(std::max(t.layers, t.encoder_layers)) +
            " layers: expected at most " + std::to_string(kMostLayers));
  }
  if (t.heads % t.kv_heads != 0) {
    refuse(
        t,
        std::to_string(t.kv_heads) + " key-value heads do not divide " +
            std::to_string(t.heads) + " heads");
  }
  const bool mixture = t.experts > 0;
  if (mixture && (t.experts_per_token < 1 || t.experts_per_token > t.experts)) {
    refuse(
        t,
        std::to_string(t.experts_per_token) + " experts a token of " +
            std::to_string(t.experts) + ": expected 1 to " +
            std::to_string(t.experts));
  }
}

/// Collects the parameters of one unit.
class UnitBuilder {
 public:
  explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }

  void tensor(std::string name, std::vector<std::int64_t> shape) {
    unit_.params.push_back({std::move(name), std::move(shape)});
  }

  void linear(
      const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    tensor(name + ".weight", {out, in});
    if (bias) {
      tensor(name + ".bias", {out});
    }
  }

  void norm(const std::string& name, const Transformer& t) {
    tensor(name + ".weight", {t.hidden});
    if (t.norm == Norm::kLayerNorm && t.norm_bias) {
      tensor(name + ".bias", {t.hidden});
    }
  }

  UnitShape take() { return std::move(unit_); }

 private:
  UnitShape unit_;
};

void add_attention(
    UnitBuilder& unit, const std::string& name, const Transformer& t) {
  const std::int64_t query = (Count(t.heads) * t.head_dim).value();
  const std::int64_t key = (Count(t.kv_heads) * t.head_dim).value();
  const bool bias = t.bias || t.qkv_bias;
  if (t.fused_qkv) {
    const Count rows = Count(query) + Count(2) * key;
    unit.linear(name + ".qkv", rows.value(), t.hidden, bias);
  } else {
    unit.linear(name + ".q", query, t.hidden, bias);
    unit.linear(name + ".k", key, t.hidden, bias);
    unit.linear(name + ".v", key, t.hidden, bias);
  }
  unit.linear(name + ".out", t.hidden, query, t.bias);
}

void add_feed_forward(
    UnitBuilder& unit, const std::string& name, const Transformer& t) {
  if (t.mlp == Mlp::kGated && t.fused_gate_up) {
    unit.linear(
        name + ".gate_up", (Count(2) * t.ffn).value(), t.hidden, t.bias);
  } else {
    if (t.mlp == Mlp::kGated) {
      unit.linear(name + ".gate", t.ffn, t.hidden, t.bias);
    }
    unit.linear(name + ".up", t.ffn, t.hidden, t.bias);
  }
  unit.linear(name + ".down", t.hidden, t.ffn, t.bias);
}

enum class Stack { kOnly, kEncoder, kDecoder };

UnitShape block(
    const Transformer& t, Stack stack, std::int64_t index, std::string name) {
  UnitBuilder unit(std::move(name));
  unit.norm("attention_norm", t);
  add_attention(unit, "attention", t);
  if (index == 0 && t.relative_buckets > 0) {
    unit.tensor("attention.relative_bias", {t.relative_buckets, t.heads});
  }
  if (stack == Stack::kDecoder) {
    unit.norm("cross_norm", t);
    add_attention(unit, "cross_attention", t);
  }
  unit.norm("ff_norm", t);
  if (t.experts == 0) {
    add_feed_forward(unit, "ff", t);
  } else {
    unit.linear("router", t.experts, t.hidden, false);
    for (std::int64_t i = 0; i < t.experts; ++i) {
      add_feed_forward(unit, "experts." + std::to_string(i), t);
    }
  }
  return unit.take();
}

UnitShape root(const Transformer& t) {
  UnitBuilder unit("root");
  unit.tensor("embedding.weight", {t.vocab, t.hidden});
  if (t.positions > 0) {
    unit.tensor("positions.weight", {t.positions, t.hidden});
  }
  if (t.final_norm) {
    if (t.encoder_layers > 0) {
      unit.norm("encoder_norm", t);
    }
    unit.norm("norm", t);
  }
  if (!t.tied) {
    unit.tensor("head.weight", {t.vocab, t.hidden});
  }
  if (t.head_bias) {
    unit.tensor("head.bias", {t.vocab});
  }
  return unit.take();
}

} // namespace

ModelShape model_of(const Transformer& transformer) {
  check_shape(transformer);
  constexpr std::int64_t kMostExperts = 100'000;
  if (transformer.experts > kMostExperts) {
    refuse(
        transformer,
        std::to_string(transformer.experts) + " experts: expected at most " +
            std::to_string(kMostExperts));
  }
  ModelShape model;
  model.name = transformer.name;
  model.transformer = transformer;
  model.root = root(transformer);
  const bool two_stacks = transformer.encoder_layers > 0;
  for (std::int64_t i = 0; i < transformer.encoder_layers; ++i) {
    model.blocks.push_back(
        block(transformer, Stack::kEncoder, i, "encoder." + std::to_string(i)));
  }
  for (std::int64_t i = 0; i < transformer.layers; ++i) {
    model.blocks.push_back(block(
        transformer,
        two_stacks ? Stack::kDecoder : Stack::kOnly,
        i,
        (two_stacks ? "decoder." : "layers.") + std::to_string(i)));
  }
  if (model.num_params() > kMostParams) {
    refuse(
        transformer,
        std::to_string(model.num_params()) + " parameters: expected at most " +
            std::to_string(kMostParams));
  }
  return model;
}

} // namespace fsdp::plan
