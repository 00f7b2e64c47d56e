// Activations against Korthikanti's counts (arXiv:2205.05198).

#include "plan/activations.h"

#include <gmock/gmock.h>

#include "models.h"
#include "plan/catalog.h"

namespace fsdp::plan {
namespace {

Job job_of(std::int64_t batch, std::int64_t seq) {
  Job job;
  job.precision = kBf16;
  job.micro_batch = batch;
  job.seq_len = seq;
  job.fused_attention = false;
  return job;
}

TEST(Activations, OfGptAreThePapersWithoutDropout) {
  const ModelShape model = model_of(find_model("gpt3-175b"));
  const Transformer& t = *model.transformer;
  const Job job = job_of(2, 2048);
  const std::int64_t sbh = 2048 * 2 * t.hidden;
  const std::int64_t assb = t.heads * 2048 * 2048 * 2;
  // sbh (34 + 5 a s / h) has two masks of sbh and, of each score, a mask and
  // the result of its dropout; a block then keeps 32 sbh + 2 a s s b.
  const std::int64_t blocks = t.layers * (32 * sbh + 2 * assb);
  const std::int64_t last = 4 * sbh; // what the final norm keeps
  EXPECT_EQ(activation_bytes(model, job), blocks + last);
}

TEST(Activations, OfFullCheckpointingAreTheBlocksInputs) {
  const ModelShape model = model_of(find_model("gpt3-175b"));
  const Transformer& t = *model.transformer;
  Job job = job_of(1, 2048);
  job.fused_attention = true;
  const std::int64_t sbh = 2048 * t.hidden;
  const std::int64_t sums = 2048 * t.heads * 4; // of fused attention
  const std::int64_t block = 32 * sbh + sums;
  // Gradients of up and of its activation, each 4h wide, and of two results.
  const std::int64_t gradients = (2 * 4 + 2) * 2 * sbh;
  EXPECT_EQ(activation_bytes(model, job), t.layers * block + 4 * sbh);
  EXPECT_EQ(working_bytes(model, job), gradients);
  job.checkpointing = Checkpointing::kFull;
  EXPECT_EQ(activation_bytes(model, job), t.layers * 2 * sbh + 4 * sbh);
  EXPECT_EQ(working_bytes(model, job), gradients + block);
  job.checkpointed_blocks = 10;
  EXPECT_EQ(
      activation_bytes(model, job),
      10 * 2 * sbh + (t.layers - 10) * block + 4 * sbh);
  job.checkpointed_blocks = t.layers + 1;
  EXPECT_EQ(activation_bytes(model, job), t.layers * 2 * sbh + 4 * sbh);
}

/// In elements of two bytes, by what each operation of the block keeps.
TEST(Activations, OfLlamaAreItsOperationsOneByOne) {
  const ModelShape model = model_of(find_model("llama3-8b"));
  const Transformer& t = *model.transformer;
  Job job = job_of(1, 1);
  job.fused_attention = true;
  const std::int64_t h = t.hidden;
  const std::int64_t keys = t.kv_heads * t.head_dim;
  const std::int64_t sums = t.heads * 4;
  const std::int64_t last = 4 * h;
  // Two norms (input, fp32 copy, result), q k v and the result; gate, its
  // activation, up, their product.
  const std::int64_t eager = 2 * (2 + 4 + 2) * h + 8 * h + 4 * 2 * t.ffn + sums;
  EXPECT_EQ(activation_bytes(model, job), t.layers * eager + last);
  job.compiled = true;
  const std::int64_t compiled = 2 * 4 * h + 8 * h + 3 * 2 * t.ffn + sums;
  EXPECT_EQ(activation_bytes(model, job), t.layers * compiled + last);
  EXPECT_EQ(working_bytes(model, job), 3 * 2 * t.ffn + 2 * 2 * h);
  // Of q k v out gate up down the first, third, fifth and seventh.
  job.checkpointing = Checkpointing::kSelective;
  const std::int64_t kept = 2 * (h + keys + t.ffn + h);
  EXPECT_EQ(
      activation_bytes(model, job),
      t.layers * (2 * h + kept + 2 * h + sums) + last);
  EXPECT_EQ(working_bytes(model, job), 3 * 2 * t.ffn + 2 * 2 * h + compiled);
}

TEST(Activations, GrowWithBatchSequenceAndWithoutCheckpointing) {
  for (const char* name :
       {"llama3-8b", "mixtral-8x7b", "t5-11b", "gpt2", "seed"}) {
    const ModelShape model = model_of(find_model(name));
    std::int64_t none = 0;
    for (const bool fused : {true, false}) {
      Job job = job_of(1, 512);
      job.fused_attention = fused;
      EXPECT_GT(activation_bytes(model, job), none) << "plain keeps more";
      none = activation_bytes(model, job);
      job.micro_batch = 3;
      EXPECT_EQ(activation_bytes(model, job), 3 * none) << name;
      EXPECT_EQ(
          logit_bytes(model, job), 3 * 512 * model.transformer->vocab * 3 * 4);
      job.fused_loss = true;
      EXPECT_EQ(
          logit_bytes(model, job), 3 * 512 * model.transformer->vocab * 2 * 2);
      job.micro_batch = 1;
      job.compiled = true;
      if (model.transformer->norm == Norm::kRmsNorm) {
        EXPECT_LT(activation_bytes(model, job), none) << name;
      } else {
        EXPECT_EQ(activation_bytes(model, job), none) << name;
      }
      job.compiled = false;
      job.checkpointing = Checkpointing::kSelective;
      const std::int64_t selective = activation_bytes(model, job);
      EXPECT_LT(selective, none) << name;
      job.checkpointing = Checkpointing::kFull;
      EXPECT_LT(activation_bytes(model, job), selective) << name;
    }
  }
}

TEST(Activations, AreNotKnownOfAFileOfWeights) {
  EXPECT_EQ(activation_bytes(gold(), job_of(1, 512)), 0);
  EXPECT_EQ(working_bytes(gold(), job_of(1, 512)), 0);
  EXPECT_EQ(logit_bytes(gold(), job_of(1, 512)), 0);
}

} // namespace
} // namespace fsdp::plan
