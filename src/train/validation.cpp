#include "train/validation.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/communicator.h"
#include "train/data/ngram.h"
#include "train/data/windows.h"

namespace fsdp {
namespace {

constexpr std::int64_t kValidationTokens = 32'768;

} // namespace

at::Tensor summed_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(
      logits.flatten(0, 1).to(at::kFloat),
      targets.flatten(),
      /*weight=*/{},
      at::Reduction::Sum);
}

Validation::Validation(
    const Corpus& corpus,
    ProcessGroup group,
    std::int64_t seq,
    std::int64_t rows)
    : source_(corpus.validation),
      group_(std::move(group)),
      seq_(seq),
      rows_(rows),
      begins_(validation_windows(
          source_->size(),
          seq,
          std::max<std::int64_t>(kValidationTokens / seq, 1))) {}

double Validation::loss(const LanguageModel& model) const {
  const at::NoGradGuard no_grad;
  const auto num_windows = static_cast<std::int64_t>(begins_.size());
  const std::int64_t per_pass = rows_ * group_.size();
  std::array<double, 2> sums{}; // of losses, of tokens
  for (std::int64_t pass = 0; pass < num_windows; pass += per_pass) {
    const std::int64_t first = pass + group_.rank() * rows_;
    const std::int64_t count =
        std::clamp<std::int64_t>(num_windows - first, 0, rows_);
    // A rank without windows left goes along with one that does not count:
    // the forward gathers parameters with all ranks.
    std::vector<std::int64_t> begins{begins_.front()};
    if (count > 0) {
      begins.assign(begins_.begin() + first, begins_.begin() + first + count);
    }
    const Batch batch = read_windows(*source_, begins, seq_);
    const at::Tensor logits = model.forward(batch.input);
    if (count > 0) {
      sums[0] += summed_loss(logits, batch.target).item<double>();
      sums[1] += static_cast<double>(count * seq_);
    }
  }
  group_.communicator().all_reduce(
      sums.data(), 2, DType::kFloat64, ReduceOp::kSum, "the validation loss");
  return sums[0] / sums[1];
}

double Validation::ngram_loss(const Corpus& corpus, int order) const {
  const NgramTable table(order, corpus.train_text->bytes());
  double sum = 0;
  for (const std::int64_t begin : begins_) {
    sum +=
        table.nats_per_byte(corpus.validation_text->bytes(), begin + 1, seq_);
  }
  return sum / static_cast<double>(begins_.size());
}

} // namespace fsdp
