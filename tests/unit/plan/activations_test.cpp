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
  EXPECT_EQ(activation_bytes(model, job), t.layers * block + 4 * sbh);
  job.checkpointing = Checkpointing::kFull;
  EXPECT_EQ(activation_bytes(model, job), t.layers * 2 * sbh + block + 4 * sbh);
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
          logit_bytes(model, job),
          3 * 512 * model.transformer->vocab * (2 + 3 * 4));
      job.micro_batch = 1;
      job.compiled = true;
      EXPECT_LT(activation_bytes(model, job), none) << name;
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
  EXPECT_EQ(logit_bytes(gold(), job_of(1, 512)), 0);
}

} // namespace
} // namespace fsdp::plan
