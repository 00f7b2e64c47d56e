#include "plan/config_json.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "fsdp/error.h"
#include "plan/find_by_name.h"

namespace fsdp::plan {

namespace {

using Json = nlohmann::json;

/// The fields of one object of a file.
class Fields {
 public:
  Fields(std::string file, std::string model_type, const Json& object)
      : file_(std::move(file)),
        model_type_(std::move(model_type)),
        object_(object) {}

  std::int64_t integer(const char* key) const {
    const auto value = find_integer(key);
    return value ? *value : refuse(key, "is missing: expected a whole number");
  }

  std::int64_t integer_or(const char* key, std::int64_t otherwise) const {
    return find_integer(key).value_or(otherwise);
  }

  bool boolean(const char* key) const {
    const auto value = find_boolean(key);
    return value ? *value
                 : refuse(key, "is missing: expected true or false") != 0;
  }

  bool boolean_or(const char* key, bool otherwise) const {
    return find_boolean(key).value_or(otherwise);
  }

  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_string()) {
      refuse(key, "is " + value->dump() + ": expected a text");
    }
    return value->get<std::string>();
  }

  /// An object inside this one; empty if there is none.
  Fields inner(const char* key) const {
    static const Json kNone = Json::object();
    const Json* value = find(key);
    if (value != nullptr && !value->is_object()) {
      refuse(key, "is " + value->dump() + ": expected an object");
    }
    return {file_, model_type_, value == nullptr ? kNone : *value};
  }

  [[noreturn]] std::int64_t refuse(
      const char* key, const std::string& what) const {
    throw ConfigError(
        "config '" + file_ + "': '" + key + "' of model type '" + model_type_ +
        "' " + what);
  }

 private:
  /// Hugging Face writes null for "as usual".
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::int64_t> find_integer(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    const bool fits =
        value->is_number_integer() &&
        (!value->is_number_unsigned() ||
         value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
    if (!fits) {
      refuse(key, "is " + value->dump() + ": expected a whole number");
    }
    return value->get<std::int64_t>();
  }

  std::optional<bool> find_boolean(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->is_boolean()) {
      refuse(key, "is " + value->dump() + ": expected true or false");
    }
    return value->get<bool>();
  }

  std::string file_;
  std::string model_type_;
  const Json& object_;
};

/// hidden / heads, where that is a whole number.
std::int64_t head_dim_of(
    const Fields& fields, const char* key, const Transformer& t) {
  if (t.heads < 1 || t.hidden % t.heads != 0) {
    fields.refuse(
        key,
        "is " + std::to_string(t.heads) + ": expected a divisor of " +
            std::to_string(t.hidden));
  }
  return t.hidden / t.heads;
}

std::int64_t four_times(
    const Fields& fields, const char* key, std::int64_t hidden) {
  constexpr std::int64_t kMost = INT64_MAX / 4;
  if (hidden < 1 || hidden > kMost) {
    fields.refuse(
        key,
        "is " + std::to_string(hidden) + ": expected 1 to " +
            std::to_string(kMost));
  }
  return 4 * hidden;
}

// llama, mistral, mixtral, qwen2: one family with small differences.
Transformer llama(const Fields& fields) {
  Transformer t;
  t.layers = fields.integer("num_hidden_layers");
  t.hidden = fields.integer("hidden_size");
  t.heads = fields.integer("num_attention_heads");
  t.kv_heads = fields.integer_or("num_key_value_heads", t.heads);
  const std::int64_t given = fields.integer_or("head_dim", 0);
  t.head_dim =
      given != 0 ? given : head_dim_of(fields, "num_attention_heads", t);
  t.ffn = fields.integer("intermediate_size");
  t.vocab = fields.integer("vocab_size");
  t.mlp = Mlp::kGated;
  t.norm = Norm::kRmsNorm;
  t.bias = fields.boolean_or("attention_bias", false);
  if (fields.boolean_or("mlp_bias", false) != t.bias) {
    fields.refuse("mlp_bias", "differs from 'attention_bias': expected both");
  }
  t.fused_qkv = false;
  t.tied = fields.boolean_or("tie_word_embeddings", false);
  return t;
}

Transformer mixtral(const Fields& fields) {
  Transformer t = llama(fields);
  t.experts = fields.integer("num_local_experts");
  t.experts_per_token = fields.integer("num_experts_per_tok");
  return t;
}

Transformer qwen2(const Fields& fields) {
  Transformer t = llama(fields);
  t.qkv_bias = true;
  return t;
}

Transformer gpt2(const Fields& fields) {
  Transformer t;
  t.layers = fields.integer("n_layer");
  t.hidden = fields.integer("n_embd");
  t.heads = fields.integer("n_head");
  t.kv_heads = t.heads;
  t.head_dim = head_dim_of(fields, "n_head", t);
  const std::int64_t inner = fields.integer_or("n_inner", 0);
  t.ffn = inner != 0 ? inner : four_times(fields, "n_embd", t.hidden);
  t.vocab = fields.integer("vocab_size");
  t.positions = fields.integer("n_positions");
  t.tied = fields.boolean_or("tie_word_embeddings", true);
  return t;
}

Transformer gpt_neox(const Fields& fields) {
  Transformer t;
  t.layers = fields.integer("num_hidden_layers");
  t.hidden = fields.integer("hidden_size");
  t.heads = fields.integer("num_attention_heads");
  t.kv_heads = t.heads;
  t.head_dim = head_dim_of(fields, "num_attention_heads", t);
  t.ffn = fields.integer("intermediate_size");
  t.vocab = fields.integer("vocab_size");
  if (!fields.boolean_or("attention_bias", true)) {
    fields.refuse("attention_bias", "is false: expected true");
  }
  t.tied = fields.boolean_or("tie_word_embeddings", false);
  return t;
}

Transformer t5(const Fields& fields) {
  Transformer t;
  t.encoder_layers = fields.integer("num_layers");
  t.layers = fields.integer_or("num_decoder_layers", t.encoder_layers);
  t.hidden = fields.integer("d_model");
  t.heads = fields.integer("num_heads");
  t.kv_heads = t.heads;
  t.head_dim = fields.integer("d_kv");
  t.ffn = fields.integer("d_ff");
  t.vocab = fields.integer("vocab_size");
  t.relative_buckets = fields.integer_or("relative_attention_num_buckets", 32);
  t.mlp = fields.text_or("feed_forward_proj", "relu").starts_with("gated-")
              ? Mlp::kGated
              : Mlp::kPlain;
  t.norm = Norm::kRmsNorm;
  t.bias = false;
  t.fused_qkv = false;
  t.tied = fields.boolean_or("tie_word_embeddings", true);
  return t;
}

Transformer mpt(const Fields& fields) {
  const Fields attention = fields.inner("attn_config");
  Transformer t;
  t.layers = fields.integer("n_layers");
  t.hidden = fields.integer("d_model");
  t.heads = fields.integer("n_heads");
  t.head_dim = head_dim_of(fields, "n_heads", t);
  const std::string kind =
      attention.text_or("attn_type", "multihead_attention");
  t.kv_heads = kind == "multihead_attention" ? t.heads
               : kind == "multiquery_attention"
                   ? 1
                   : attention.integer("kv_n_heads");
  if (fields.integer_or("expansion_ratio", 4) != 4) {
    fields.refuse("expansion_ratio", "is not 4: expected 4");
  }
  t.ffn = four_times(fields, "d_model", t.hidden);
  t.vocab = fields.integer("vocab_size");
  const bool learned = !attention.boolean_or("alibi", false) &&
                       !attention.boolean_or("rope", false) &&
                       fields.boolean_or("learned_pos_emb", true);
  t.positions = learned ? fields.integer("max_seq_len") : 0;
  // Its two implementations have different defaults for this one.
  t.bias = !fields.boolean("no_bias");
  t.norm_bias = t.bias;
  t.tied = fields.boolean_or("tie_word_embeddings", true);
  return t;
}

struct Reader {
  std::string name; ///< the model type
  Transformer (*read)(const Fields&);
};

std::span<const Reader> readers() {
  static const std::vector<Reader> all{
      {"llama", llama},
      {"mistral", llama},
      {"mixtral", mixtral},
      {"qwen2", qwen2},
      {"gpt2", gpt2},
      {"gpt_neox", gpt_neox},
      {"t5", t5},
      {"mpt", mpt}};
  return all;
}

} // namespace

Transformer parse_config_json(const std::string& file, std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw DataError(
        "config '" + file + "' is no JSON object: expected a config.json");
  }
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    throw ConfigError(
        "config '" + file +
        "': 'model_type' is missing or no text: expected llama, gpt2, ...");
  }
  const auto name = type->get<std::string>();
  const Reader* reader = nullptr;
  try {
    reader = &find_by_name("model type", readers(), name);
  } catch (const ConfigError& error) {
    throw ConfigError("config '" + file + "': " + error.what());
  }
  Transformer t = reader->read({file, name, json});
  t.name = file;
  return t;
}

Transformer read_config_json(const std::filesystem::path& path) {
  std::error_code ignored;
  // To open a pipe would wait for who writes it.
  const bool is_file = std::filesystem::is_regular_file(path, ignored);
  std::ifstream stream(is_file ? path : std::filesystem::path());
  if (!stream) {
    throw DataError(
        "config '" + path.string() + "' cannot be read: expected a file");
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_config_json(path.string(), text);
}

} // namespace fsdp::plan
