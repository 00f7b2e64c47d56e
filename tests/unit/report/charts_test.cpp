// What the charts show, beside numbers worked out here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fsdp/error.h"
#include "plan/catalog.h"
#include "report/plan_charts.h"
#include "report/quantity.h"
#include "report/seed_charts.h"
#include "report/step_charts.h"
#include "support/throws.h"

namespace fsdp::report {
namespace {

using plan::Category;
using plan::Cluster;
using plan::Strategy;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

const Chart& chart_of(const std::vector<Chart>& charts, const std::string& id) {
  for (const Chart& chart : charts) {
    if (chart.id == id) {
      return chart;
    }
  }
  throw UsageError("no chart " + id);
}

Cluster cluster_of(std::int64_t nodes, std::int64_t devices) {
  Cluster cluster;
  cluster.device = plan::find_device("A100-SXM-80GB");
  cluster.nodes = nodes;
  cluster.devices_per_node = devices;
  return cluster;
}

TEST(SeedCharts, ShowTheMemoryThatTheDocumentsPrint) {
  const auto charts = seed_charts();
  const Chart& chart = chart_of(charts, "savings");
  EXPECT_THAT(chart.x.labels, ElementsAre("1", "4", "8", "16"));
  ASSERT_EQ(chart.series.size(), 3U);
  const auto near = [](double mb) { return DoubleNear(mb, 0.05); };
  EXPECT_THAT(
      chart.series[1].values,
      ElementsAre(near(157.9), near(69.1), near(54.3), near(46.9)));
  EXPECT_THAT(
      chart.series[2].values,
      ElementsAre(near(157.9), near(39.5), near(19.7), near(9.9)));
}

TEST(SeedCharts, ShowTheVolumeCountedAndThatOfARing) {
  const auto charts = seed_charts();
  const Chart& chart = chart_of(charts, "volume");
  const double copy_mb = 4 * 9.868560;
  EXPECT_THAT(
      chart.series[0].values,
      ElementsAre(
          DoubleNear(2 * copy_mb, 1e-9),
          DoubleNear(2 * copy_mb, 1e-9),
          DoubleNear(6 * copy_mb, 1e-9)));
  EXPECT_NEAR(chart.series[1].values[2], 3 * copy_mb * 7 / 8, 1e-9);
}

TEST(SeedCharts, RecommendEachModelAndClusterOnce) {
  const auto charts = seed_charts();
  const Chart& chart = chart_of(charts, "recommendation");
  const auto at = [&](std::size_t x, std::size_t y) {
    return chart.table.rows.at(y).at(x + 1);
  };
  ASSERT_EQ(chart.y.labels[2], "7.00 B");
  ASSERT_EQ(chart.x.labels[2], "8");
  EXPECT_EQ(at(2, 2), "SHARD_GRAD_OP"); // 112, 38.5 and 14 GB of 80
  ASSERT_EQ(chart.y.labels[5], "70.0 B");
  EXPECT_EQ(at(2, 5), "FULL_SHARD + CPU offload"); // 140 GB
  EXPECT_EQ(at(4, 5), "FULL_SHARD");               // on 32: 35 GB
  std::vector<int> seen(64);
  for (const Series& series : chart.series) {
    for (const Point& point : series.points) {
      const auto x = static_cast<std::size_t>(point.x);
      const auto y = static_cast<std::size_t>(point.y);
      ++seen.at(8 * y + x);
      EXPECT_EQ(at(x, y), series.name);
    }
  }
  EXPECT_THAT(seen, ::testing::Each(1));
}

TEST(PlanCharts, ComponentsOfAMomentAddUpToIt) {
  const plan::ModelShape model = model_of(plan::find_model("gpt2"));
  for (const auto strategy :
       {Strategy::kNoShard, Strategy::kShardGradOp, Strategy::kFullShard}) {
    for (const std::int64_t accumulation : {1, 4}) {
      for (const bool sync : {true, false}) {
        for (const std::int64_t seq : {16, 1024}) {
          plan::Job job;
          job.strategy = strategy;
          job.accumulation = accumulation;
          job.sync_every_pass = sync;
          job.seq_len = seq;
          const auto memory = estimate_memory(model, job, cluster_of(1, 8));
          std::int64_t at_loss = 0;
          std::int64_t in_backward = 0;
          for (const plan::MemoryPart& part : parts_of(memory)) {
            at_loss += part.at_loss;
            in_backward += part.in_backward;
          }
          EXPECT_EQ(at_loss, memory.total_at_loss());
          EXPECT_EQ(in_backward, memory.total_in_backward());
        }
      }
    }
  }
}

TEST(PlanCharts, ParametersByComponentAreARanksShare) {
  const plan::ModelShape model = model_of(plan::find_model("gpt2"));
  const Cluster cluster = cluster_of(1, 1);
  Way way;
  way.memory = estimate_memory(model, way.job, cluster);
  const Chart chart = memory_by_component(way, cluster);
  ASSERT_EQ(chart.y.labels.at(0), "parameters");
  // 124,439,808 parameters of 4 bytes, in GB.
  EXPECT_NEAR(chart.series[0].values[0], 0.497759232, 1e-12);
  EXPECT_EQ(chart.x.title, "memory, GB");
}

TEST(PlanCharts, SmallerClustersGrowFromOneDeviceToTheGiven) {
  const auto sizes = [](std::int64_t nodes, std::int64_t devices) {
    std::vector<std::int64_t> all;
    for (const Cluster& smaller :
         smaller_clusters(cluster_of(nodes, devices))) {
      all.push_back(smaller.world_size());
    }
    return all;
  };
  EXPECT_THAT(sizes(1, 1), ElementsAre(1));
  EXPECT_THAT(sizes(3, 6), ElementsAre(1, 2, 4, 6, 12, 18));
  const auto many = sizes(2048, 8);
  EXPECT_LE(many.size(), 10U);
  EXPECT_EQ(many.front(), 1);
  EXPECT_EQ(many.back(), 16384);
  EXPECT_TRUE(std::ranges::is_sorted(many));
}

TEST(StepCharts, PutStreamsOnRowsAndBeginAtZero) {
  const std::vector<plan::Event> events{
      {Category::kUnshard, "all_gather", "root", 2.0, 2.010, 1},
      {Category::kCompute, "forward", "root", 2.010, 2.040, 1},
      {Category::kCompute, "forward", "root", 0, 9, 0},
      {Category::kReduce, "reduce_scatter", "root", 2.030, 2.050, 1},
      {Category::kOptimizer, "step", "root", 2.050, 2.051, 1}};
  const Chart chart = timeline(events, 1);
  EXPECT_EQ(chart.x.title, "time, ms");
  ASSERT_EQ(chart.series[0].spans.size(), 1U);
  EXPECT_EQ(chart.series[0].spans[0].row, 0);
  EXPECT_NEAR(chart.series[0].spans[0].start, 10, 1e-9);
  EXPECT_NEAR(chart.series[0].spans[0].end, 40, 1e-9);
  EXPECT_EQ(chart.series[1].spans[0].row, 1);
  EXPECT_EQ(chart.series[2].spans[0].label, "reduce_scatter root");
  // 30 of 51 ms compute, 20 ms communicate alone.
  EXPECT_THAT(chart.table.rows[0], ElementsAre("compute", "30.00", "58.8 %"));
  EXPECT_THAT(
      chart.table.rows[3],
      ElementsAre("communication alone", "20.00", "39.2 %"));
}

TEST(StepCharts, RefuseARankWithoutEvents) {
  EXPECT_EQ(
      testing::thrown_text<UsageError>([] { timeline({}, 3); }),
      "timeline: rank 3 has no events; pass a rank that has");
}

TEST(StepCharts, KeepTheLastOfManyEvents) {
  std::vector<plan::Event> events;
  for (int i = 0; i < 4100; ++i) {
    events.push_back({Category::kCompute, "f", "u", i * 1.0, i + 1.0, 0});
  }
  const Chart chart = timeline(events, 0);
  ASSERT_EQ(chart.series[0].spans.size(), 4000U);
  EXPECT_EQ(chart.series[0].spans[0].start, 0);
  EXPECT_EQ(chart.series[0].spans.back().end, 4000);
  EXPECT_THAT(
      chart.text, ::testing::HasSubstr("The last 4000 of 4100 events."));
}

TEST(Quantities, HaveFourDigitsAndUnits) {
  EXPECT_EQ(number_text(157.89696), "157.9");
  EXPECT_EQ(number_text(0.078948), "0.07895");
  EXPECT_EQ(number_text(16384), "16384");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(std::nan("")), "-");
  EXPECT_EQ(with_unit(2.5e9, unit_of_bytes(2.5e9)), "2.500 GB");
  EXPECT_EQ(with_unit(0.0025, unit_of_seconds(0.0025)), "2.500 ms");
  EXPECT_EQ(count_text(8.03e9), "8.03 B");
}

} // namespace
} // namespace fsdp::report
