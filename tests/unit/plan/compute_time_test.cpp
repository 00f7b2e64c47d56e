#include "plan/compute_time.h"

#include <gtest/gtest.h>

#include <string>

#include "fsdp/error.h"
#include "plan/catalog.h"
#include "plan/compute_work.h"
#include "support/throws.h"
#include "unit/plan/plan_shapes.h"

namespace fsdp::plan {
namespace {

using testing::bf16_job;
using testing::round_cluster;
using testing::round_device;
using testing::round_model;

double linear_flops(const BlockWork& work) {
  double flops = 0;
  for (const Linear& linear : work.linears) {
    flops += linear.flops(1);
  }
  return flops;
}

/// Elements of all tensors of two dimensions.
double matrix_numel(const UnitShape& unit) {
  double sum = 0;
  for (const ParamShape& param : unit.params) {
    sum += param.shape.size() == 2 ? static_cast<double>(param.numel()) : 0;
  }
  return sum;
}

TEST(ComputeWork, AProductTakesTwoFlopsAMatrixElement) {
  for (const char* name :
       {"gpt2", "gpt2-xl", "llama2-7b", "llama2-70b", "llama3-8b"}) {
    SCOPED_TRACE(name);
    const ModelShape model = model_of(find_model(name));
    const BlockWork work =
        block_work(*model.transformer, BlockKind::kPlain, bf16_job());
    EXPECT_DOUBLE_EQ(linear_flops(work), 2 * matrix_numel(model.blocks[0]));
  }
}

TEST(ComputeWork, AMixtureComputesTheChosenExpertsOnly) {
  const Transformer mixtral = find_model("mixtral-8x7b");
  Transformer dense = mixtral;
  dense.experts = 0;
  dense.experts_per_token = 0;
  const auto flops = [](const Transformer& transformer) {
    return linear_flops(block_work(transformer, BlockKind::kPlain, bf16_job()));
  };
  const double mlp = 2.0 * 3 * 4096 * 14336;
  EXPECT_DOUBLE_EQ(flops(mixtral), flops(dense) + mlp + 2.0 * 4096 * 8);
}

TEST(ComputeWork, AMaskHalvesFusedAttentionOnly) {
  Transformer transformer = *round_model(1, 1024).transformer;
  Job job = bf16_job();
  job.seq_len = 4096;
  const double whole = 4.0 * 4096 * 1024;
  const auto flops = [&] {
    return block_work(transformer, BlockKind::kPlain, job).attention_flops;
  };
  EXPECT_DOUBLE_EQ(flops(), whole / 2);
  job.fused_attention = false;
  EXPECT_DOUBLE_EQ(flops(), whole);
  job.fused_attention = true;
  transformer.causal = false;
  EXPECT_DOUBLE_EQ(flops(), whole);
}

TEST(ComputeWork, ModelFlopsAreSixAParameterAndTwelveAnAttention) {
  const ModelShape model = round_model(10, 2048);
  Job job = bf16_job();
  job.seq_len = 4096;
  const double expected =
      6.0 * static_cast<double>(model.num_params()) + 12.0 * 10 * 2048 * 4096;
  EXPECT_DOUBLE_EQ(
      model_flops_per_token(*model.transformer, model.num_params(), job),
      expected);
  EXPECT_EQ(recompute_flops_per_token(*model.transformer, job), 0);
  job.checkpointing = Checkpointing::kFull;
  EXPECT_DOUBLE_EQ(
      recompute_flops_per_token(*model.transformer, job),
      10 * (2 * 12.0 * 2048 * 2048 + 4.0 * 2048 * 4096));
}

TEST(ComputeWork, ModelFlopsGiveThePublishedUtilisation) {
  // llm-foundry, MPT-7b on A100-80GB: MFU = (6 P + 12 L d s) tok/s over peak,
  // with the figures of MPT-1b at 2048: 18647 tok/s a device are 0.5441.
  Transformer mpt;
  mpt.name = "mpt";
  mpt.layers = 24;
  mpt.hidden = 2048;
  mpt.heads = mpt.kv_heads = 16;
  mpt.head_dim = 128;
  mpt.ffn = 8192;
  mpt.vocab = 50368;
  mpt.positions = 2048;
  Job job = bf16_job();
  job.seq_len = 2048;
  const double flops = model_flops_per_token(mpt, 1'316'000'000, job);
  EXPECT_NEAR(flops * 18647 / 312e12, 0.5441, 0.0005);
}

TEST(ComputeTime, NeverRunsFasterThanTheDevice) {
  const Cluster cluster = round_cluster(1, 8);
  for (const std::int64_t hidden : {256, 1024, 4096, 16384}) {
    for (const std::int64_t micro_batch : {1, 4, 32}) {
      const ModelShape model = round_model(2, hidden);
      Job job = bf16_job();
      job.micro_batch = micro_batch;
      const ComputeTimes times = compute_times(model, job, cluster);
      double seconds = times.embedding.seconds() + times.head.seconds();
      for (const UnitTime& block : times.blocks) {
        seconds += block.seconds();
      }
      const double flops = 6.0 * static_cast<double>(model.num_params()) *
                           static_cast<double>(micro_batch * job.seq_len);
      EXPECT_GT(seconds, flops / cluster.device.peak_bf16);
    }
  }
}

TEST(ComputeTime, CheckpointingCostsAtMostAForward) {
  const ModelShape model = round_model(2, 4096);
  Job job = bf16_job();
  const auto block = [&](Checkpointing checkpointing) {
    job.checkpointing = checkpointing;
    return compute_times(model, job, round_cluster(1, 8)).blocks[0];
  };
  const UnitTime none = block(Checkpointing::kNone);
  const UnitTime selective = block(Checkpointing::kSelective);
  const UnitTime full = block(Checkpointing::kFull);
  EXPECT_EQ(none.recompute, 0);
  EXPECT_GT(selective.recompute, 0);
  EXPECT_LT(selective.recompute, full.recompute);
  EXPECT_DOUBLE_EQ(full.recompute, full.forward);
  EXPECT_DOUBLE_EQ(full.backward, none.backward);
}

TEST(ComputeTime, OnlyCheckpointedBlocksComputeAgain) {
  const ModelShape model = round_model(5, 2048);
  Job job = bf16_job();
  job.checkpointing = Checkpointing::kFull;
  const ComputeTimes all = compute_times(model, job, round_cluster(1, 8));
  job.checkpointed_blocks = 2;
  const ComputeTimes two = compute_times(model, job, round_cluster(1, 8));
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(two.blocks[i].recompute > 0, i < 2) << i;
    EXPECT_DOUBLE_EQ(two.blocks[i].backward, all.blocks[i].backward);
  }
  EXPECT_DOUBLE_EQ(two.recompute_flops * 5, all.recompute_flops * 2);
}

TEST(ComputeWork, TheLossMovesBytesByItsKernels) {
  const Transformer transformer = *round_model(1, 1024, 50'000).transformer;
  Job job = bf16_job();
  const auto bytes = [&] {
    const BlockWork work = head_work(transformer, job);
    return work.forward_bytes + work.backward_bytes;
  };
  const double norm = 9 * 2 * 1024;
  // Forward: read 2, write and read 4, write 4. Backward: twice read and write
  // of 4, cast to 2, and 4 that the gradient of the picked element writes.
  EXPECT_DOUBLE_EQ(bytes(), 36.0 * 50'000 + norm);
  job.logit_metrics = 2;
  EXPECT_DOUBLE_EQ(bytes(), (36.0 + 2 * 14) * 50'000 + norm);
  job.fused_loss = true;
  EXPECT_DOUBLE_EQ(bytes(), (8.0 + 2 * 14) * 50'000 + norm);
}

TEST(ComputeTime, GrowsWithTheBatchButLessThanInProportion) {
  const ModelShape model = round_model(1, 1024);
  Job job = bf16_job();
  job.seq_len = 512;
  double before = 0;
  for (std::int64_t micro_batch = 1; micro_batch <= 256; micro_batch *= 2) {
    job.micro_batch = micro_batch;
    const double seconds =
        compute_times(model, job, round_cluster(1, 8)).blocks[0].seconds();
    EXPECT_GT(seconds, before);
    if (before > 0) {
      EXPECT_LE(seconds, 2 * before * (1 + 1e-12));
    }
    before = seconds;
  }
}

TEST(ComputeTime, TheOptimizerReadsAndWritesTheShard) {
  const ModelShape model = round_model(4, 2048);
  Job job = bf16_job();
  const auto params = static_cast<double>(model.num_params());
  const double bandwidth = 0.9 * 3000e9;
  EXPECT_NEAR(
      optimizer_time(model, job, round_cluster(1, 8)),
      params / 8 * 28 / bandwidth,
      1e-12);
  job.strategy = Strategy::kNoShard;
  job.optimizer = OptimizerKind::kSgd;
  EXPECT_NEAR(
      optimizer_time(model, job, round_cluster(1, 8)),
      params * 12 / bandwidth,
      1e-12);
}

TEST(ComputeTime, Fp8SpeedsUpTheBlocksAndNotTheHead) {
  const ModelShape model = round_model(1, 8192);
  Job job = bf16_job();
  job.micro_batch = 8;
  const ComputeTimes bf16 = compute_times(model, job, round_cluster(1, 8));
  job.precision.fp8_matmuls = true;
  const ComputeTimes fp8 = compute_times(model, job, round_cluster(1, 8));
  EXPECT_LT(fp8.blocks[0].seconds(), 0.75 * bf16.blocks[0].seconds());
  EXPECT_DOUBLE_EQ(fp8.head.seconds(), bf16.head.seconds());
}

TEST(ComputeTime, AnEncoderDecoderHasTwoKindsOfBlocks) {
  const ModelShape model = model_of(find_model("t5-11b"));
  const ComputeTimes times =
      compute_times(model, bf16_job(), round_cluster(1, 8));
  ASSERT_EQ(times.blocks.size(), 48U);
  EXPECT_DOUBLE_EQ(times.blocks[0].forward, times.blocks[23].forward);
  EXPECT_GT(times.blocks[24].forward, times.blocks[23].forward);
}

TEST(ComputeTime, RefusesWhatItCannotKnow) {
  ModelShape model = round_model(2, 1024);
  const auto refusal = [&](const Device& device) {
    return fsdp::testing::thrown_text<ConfigError>([&] {
      compute_times(model, bf16_job(), {device, 1, 8});
    });
  };
  Device device = round_device();
  device.memory_bandwidth = 0;
  EXPECT_EQ(
      refusal(device),
      "device 'round' has no memory bandwidth, which the time of a step needs: "
      "give it by a flag, or choose another device");
  model.blocks.pop_back();
  EXPECT_EQ(
      refusal(round_device()),
      "model 'round' has 1 blocks of parameters but 2 layers: describe the "
      "same model");
  model.transformer.reset();
  EXPECT_EQ(
      refusal(round_device()),
      "model 'round' is known by its tensors only, and the time of a step "
      "needs its layers, heads and widths: name a model or give its "
      "config.json");
}

} // namespace
} // namespace fsdp::plan
