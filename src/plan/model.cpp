#include "plan/model.h"

#include <map>
#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "plan/count.h"

namespace fsdp::plan {

std::int64_t ParamShape::rows() const {
  return shape.empty() ? 1 : shape.front();
}

std::int64_t ParamShape::row_numel() const {
  Count numel = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) {
    numel = numel * shape[i];
  }
  return numel.value();
}

std::int64_t ParamShape::numel() const {
  return (Count(rows()) * row_numel()).value();
}

std::int64_t UnitShape::numel() const {
  Count total = 0;
  for (const ParamShape& param : params) {
    total += param.numel();
  }
  return total.value();
}

std::int64_t ModelShape::num_params() const {
  Count total = root.numel();
  for (const UnitShape& block : blocks) {
    total += block.numel();
  }
  return total.value();
}

namespace {

bool is_number(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "model.layers.17" of "model.layers.17.mlp.up.weight": up to the first part
/// that is a number. Empty if there is none, or nothing follows it.
std::string_view block_of(std::string_view name) {
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = name.find('.', begin);
    if (end == std::string_view::npos) {
      return {};
    }
    if (begin > 0 && is_number(name.substr(begin, end - begin))) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
}

/// Numbers by value, everything else by its letters: layers.2 before layers.10.
bool before(std::string_view a, std::string_view b) {
  const std::size_t number_a = a.rfind('.') + 1;
  const std::size_t number_b = b.rfind('.') + 1;
  const std::string_view stack_a = a.substr(0, number_a);
  const std::string_view stack_b = b.substr(0, number_b);
  if (stack_a != stack_b) {
    // A T5's encoder runs before its decoder.
    const bool encoder_a = stack_a.find("encoder") != std::string_view::npos;
    const bool encoder_b = stack_b.find("encoder") != std::string_view::npos;
    return encoder_a != encoder_b ? encoder_a : stack_a < stack_b;
  }
  const std::size_t digits_a = a.size() - number_a;
  const std::size_t digits_b = b.size() - number_b;
  return digits_a != digits_b ? digits_a < digits_b : a < b;
}

} // namespace

ModelShape model_of_tensors(std::string name, std::vector<ParamShape> tensors) {
  if (tensors.empty()) {
    throw ConfigError(
        "model '" + name + "' has no tensors: expected at least one");
  }
  ModelShape model;
  model.name = std::move(name);
  model.root.name = "root";
  const auto less = [](const std::string& a, const std::string& b) {
    return before(a, b);
  };
  std::map<std::string, UnitShape, decltype(less)> blocks(less);
  for (ParamShape& tensor : tensors) {
    const std::string block(block_of(tensor.name));
    UnitShape& unit = block.empty() ? model.root : blocks[block];
    unit.params.push_back(std::move(tensor));
  }
  for (auto& [block, unit] : blocks) {
    unit.name = block;
    model.blocks.push_back(std::move(unit));
  }
  model.num_params(); // refuses what overflows
  return model;
}

} // namespace fsdp::plan
