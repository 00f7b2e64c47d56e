#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "train/data/corpus.h"
#include "train/data/ngram.h"

namespace fsdp {
namespace {

std::vector<std::uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

TEST(Ngram, UnseenTextCostsTheUniformDistribution) {
  const NgramTable empty(3, {});
  EXPECT_DOUBLE_EQ(empty.nats_per_byte(bytes("abc"), 0, 3), std::log(256.0));
}

TEST(Ngram, InterpolatesAsWittenAndBell) {
  const auto train = bytes("aab");
  const auto text = bytes("ab");
  // Unigram: 3 bytes of 2 kinds. After 'a': 'a' and 'b' once each.
  const double p_a = (2 + 2.0 / 256) / 5;
  const double p_b = (1 + 2.0 / 256) / 5;
  const double p_b_after_a = (1 + 2 * p_b) / 4;
  const NgramTable table(2, train);
  EXPECT_DOUBLE_EQ(table.nats_per_byte(text, 0, 1), -std::log(p_a));
  EXPECT_DOUBLE_EQ(table.nats_per_byte(text, 1, 1), -std::log(p_b_after_a));
  EXPECT_DOUBLE_EQ(
      table.nats_per_byte(text, 0, 2),
      -(std::log(p_a) + std::log(p_b_after_a)) / 2);
}

TEST(Ngram, ProbabilitiesOfAllBytesSumToOne) {
  const auto train = bytes("the quick brown fox jumps over the lazy dog");
  const NgramTable table(3, train);
  double sum = 0;
  for (int c = 0; c < 256; ++c) {
    auto text = bytes("th");
    text.push_back(static_cast<std::uint8_t>(c));
    sum += std::exp(-table.nats_per_byte(text, 2, 1));
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Ngram, TablesOfTheDefaultTextCostWhatIsKnown) {
  const Corpus corpus = open_corpus(default_text_folder(), 256, 2, ".py");
  const auto validation = corpus.validation_text->bytes();
  const auto cost = [&](int order) {
    const NgramTable table(order, corpus.train_text->bytes());
    return table.nats_per_byte(validation, 0, corpus.validation->size());
  };
  EXPECT_NEAR(cost(2), 2.45, 0.05);
  EXPECT_NEAR(cost(3), 1.79, 0.05);
}

} // namespace
} // namespace fsdp
