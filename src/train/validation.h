#pragma once
// The loss on held-out text, always on the same windows, whatever the ranks.

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/process_group.h"
#include "train/data/corpus.h"
#include "train/models/language_model.h"

namespace fsdp {

class Validation {
 public:
  /// At most 32768 tokens of `corpus.validation`, evenly spread, in passes of
  /// `rows` sequences of `seq` tokens per rank.
  Validation(
      const Corpus& corpus,
      ProcessGroup group,
      std::int64_t seq,
      std::int64_t rows);

  /// [collective] Mean of -ln p over the windows' targets.
  double loss(const LanguageModel& model) const;

  /// The same number for a table of `order` bytes counted on the training text;
  /// local. The corpus must be text.
  double ngram_loss(const Corpus& corpus, int order) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  ProcessGroup group_;
  std::int64_t seq_;
  std::int64_t rows_;
  std::vector<std::int64_t> begins_;
};

/// Sum of -ln p of the targets, as float32 whatever the logits' dtype; a scalar
/// with a gradient.
at::Tensor summed_loss(const at::Tensor& logits, const at::Tensor& targets);

} // namespace fsdp
