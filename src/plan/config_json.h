#pragma once
// The config.json beside a model's weights, as Hugging Face writes it.

#include <filesystem>
#include <string>
#include <string_view>

#include "plan/transformer.h"

namespace fsdp::plan {

/// Understands the model types llama, mistral, mixtral, qwen2, gpt2, gpt_neox,
/// t5 and mpt. Throws DataError if the file cannot be read or holds no JSON
/// object, ConfigError, naming file, field and model type, if a field is
/// missing or of another type, or says what is not described here.
Transformer read_config_json(const std::filesystem::path& path);

/// `text` as the content of `file`, which errors name.
Transformer parse_config_json(const std::string& file, std::string_view text);

} // namespace fsdp::plan
