#include "train/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

#include "comm/communicator.h"
#include "train/data/windows.h"

namespace fsdp {
namespace {

// Apart from the training windows, whose streams are step numbers.
constexpr std::uint64_t kSampleStream = ~std::uint64_t{0} - 2;

at::Tensor as_tokens(const std::string& text, std::int64_t max_context) {
  const auto length =
      std::min(text.size(), static_cast<std::size_t>(max_context));
  at::Tensor tokens =
      at::empty({1, static_cast<std::int64_t>(length)}, at::kLong);
  std::transform(
      text.end() - static_cast<std::ptrdiff_t>(length),
      text.end(),
      tokens.mutable_data_ptr<std::int64_t>(),
      [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

/// The first byte whose cumulated probability exceeds `point` in [0, 1).
std::uint8_t draw(const at::Tensor& logits, double temperature, double point) {
  const at::Tensor probabilities =
      at::softmax(logits.to(at::kDouble) / temperature, 0);
  const auto* p = probabilities.const_data_ptr<double>();
  const auto last = static_cast<std::size_t>(probabilities.numel() - 1);
  std::size_t byte = 0;
  for (double sum = p[0]; sum <= point && byte < last; sum += p[byte]) {
    ++byte;
  }
  return static_cast<std::uint8_t>(byte);
}

} // namespace

std::string sample_bytes(
    const LanguageModel& model,
    const ProcessGroup& group,
    const SampleOptions& options) {
  const at::NoGradGuard no_grad;
  std::string text = options.prompt;
  for (std::int64_t i = 0; i < options.num_bytes; ++i) {
    const at::Tensor logits =
        model.forward(as_tokens(text, options.max_context));
    std::uint8_t byte = 0;
    if (group.rank() == 0) {
      const auto bits = mixed_bits(
          options.seed, kSampleStream, static_cast<std::uint64_t>(i));
      byte = draw(
          logits[0][-1],
          options.temperature,
          static_cast<double>(bits >> 11) * 0x1p-53);
    }
    group.communicator().broadcast(
        &byte, 1, DType::kUInt8, 0, "the sampled byte");
    text.push_back(static_cast<char>(byte));
  }
  return text.substr(options.prompt.size());
}

} // namespace fsdp
