// Predicted seconds and bytes beside published ones. docs/planner.md has the
// means; this prints every row.

#include "published_runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "plan/memory.h"
#include "plan/schedule.h"
#include "plan/simulate.h"

namespace fsdp::plan {
namespace {

using testing::PublishedRun;

constexpr double kGibi = 1024.0 * 1024 * 1024;

const std::vector<PublishedRun>& all_runs() {
  static const std::vector<PublishedRun> runs =
      testing::published_runs(FSDP_PLAN_DATA "/published_runs.json");
  return runs;
}

std::vector<PublishedRun> runs_that(
    const std::function<bool(const PublishedRun&)>& is_wanted) {
  std::vector<PublishedRun> wanted;
  std::ranges::copy_if(all_runs(), std::back_inserter(wanted), is_wanted);
  return wanted;
}

bool is_tier_a(const PublishedRun& run) {
  return run.text("tier") == "A";
}

bool is_yafsdp(const PublishedRun& run) {
  return run.holds("source", "YaFSDP");
}

bool is_fsdp1(const PublishedRun& run) {
  return run.holds("strategy", "FSDP1");
}

double predicted_seconds(const PublishedRun& run) {
  const ModelShape model = run.model();
  const Cluster cluster = run.cluster();
  const Job job = run.job();
  check(job, cluster);
  const ComputeTimes compute = compute_times(model, job, cluster);
  return simulate(make_schedule(model, job, cluster, compute), false).seconds;
}

MemoryEstimate predicted_memory(const PublishedRun& run) {
  return estimate_memory(run.model(), run.job(), run.cluster());
}

/// An allocator cannot reserve more than there is.
double predicted_reserved_gib(const PublishedRun& run) {
  const auto needed = static_cast<double>(predicted_memory(run).total());
  return std::min(needed, run.cluster().device.memory_bytes) / kGibi;
}

class Errors {
 public:
  void add(double error) {
    absolute_ += std::abs(error);
    signed_ += error;
    ++count_;
  }
  double mean() const { return absolute_ / count_; }
  double bias() const { return signed_ / count_; }
  int count() const { return count_; }

 private:
  double absolute_ = 0;
  double signed_ = 0;
  int count_ = 0;
};

using BySource = std::map<std::string, Errors>;

void print(
    const PublishedRun& run,
    const char* unit,
    double measured,
    double predicted) {
  std::printf(
      "%s  %-12s %-24s x%-4d seq %-6d batch %-3d x%-2d %-14s %9.4f %9.4f %s "
      "%+6.2f %%\n",
      run.text("id").c_str(),
      run.text("model").c_str(),
      run.text("gpu_type").c_str(),
      static_cast<int>(run.count("gpus", 0)),
      static_cast<int>(run.count("seq_len", 0)),
      static_cast<int>(run.count("local_batch", 0)),
      static_cast<int>(run.count("grad_accum", 1)),
      run.text("act_ckpt").substr(0, 14).c_str(),
      measured,
      predicted,
      unit,
      100 * (predicted / measured - 1));
}

BySource compare_seconds(const std::vector<PublishedRun>& runs) {
  BySource errors;
  for (const PublishedRun& run : runs) {
    const double measured = run.number("derived_step_s");
    const double predicted = predicted_seconds(run);
    print(run, "s", measured, predicted);
    errors[run.text("source")].add(predicted / measured - 1);
  }
  return errors;
}

BySource compare_reserved(const std::vector<PublishedRun>& runs) {
  BySource errors;
  for (const PublishedRun& run : runs) {
    const double measured = run.number("peak_mem_GiB");
    const double predicted = predicted_reserved_gib(run);
    print(run, "GiB", measured, predicted);
    errors[run.text("source")].add(predicted / measured - 1);
  }
  return errors;
}

/// Prints the means; returns that of all rows.
double print_means(const BySource& by_source) {
  double sum = 0;
  int count = 0;
  for (const auto& [source, errors] : by_source) {
    std::printf(
        "mean %5.2f %%, bias %+5.2f %%, of %3d: %s\n",
        100 * errors.mean(),
        100 * errors.bias(),
        errors.count(),
        source.c_str());
    sum += errors.mean() * errors.count();
    count += errors.count();
  }
  std::printf("mean %5.2f %% of all %d\n", 100 * sum / count, count);
  return sum / count;
}

TEST(PublishedRuns, AreAllThereWithTheirShapes) {
  std::map<std::string, int> tiers;
  for (const PublishedRun& run : all_runs()) {
    ++tiers[run.text("tier")];
    if (run.beyond_the_planner().empty() && run.has("params_B")) {
      const auto params = static_cast<double>(run.model().num_params());
      EXPECT_NEAR(params / 1e9 / run.number("params_B"), 1, 0.002)
          << run.text("id");
    }
  }
  EXPECT_EQ(tiers["A"], 109);
  EXPECT_EQ(tiers["B"], 32);
  EXPECT_EQ(tiers["C"], 6);
}

TEST(PublishedRuns, StepTimesErrByAtMostEightPercentInTheMean) {
  const BySource errors = compare_seconds(runs_that(is_tier_a));
  EXPECT_LE(print_means(errors), 0.08);
  ASSERT_EQ(errors.size(), 6U);
  for (const auto& [source, of_source] : errors) {
    EXPECT_LE(of_source.mean(), 0.15) << source;
  }
}

TEST(PublishedRuns, CommunicationBoundStepsFollowOneNetworkConstant) {
  const auto runs = runs_that(
      [](const PublishedRun& run) { return is_yafsdp(run) && is_fsdp1(run); });
  ASSERT_EQ(runs.size(), 5U);
  EXPECT_LE(print_means(compare_seconds(runs)), 0.06);
}

TEST(PublishedRuns, ReservedMemoryErrsByAtMostTwelvePercent) {
  const BySource errors = compare_reserved(runs_that([](const auto& run) {
    return is_tier_a(run) && run.holds("mem_kind", "reserved");
  }));
  print_means(errors);
  ASSERT_EQ(errors.size(), 2U);
  for (const auto& [source, of_source] : errors) {
    EXPECT_GE(of_source.count(), 6) << source;
    EXPECT_LE(of_source.mean(), 0.12) << source;
  }
}

/// They ran, most of them with the largest batch that did.
TEST(PublishedRuns, FitIntoTheirDevices) {
  int crowded = 0;
  for (const PublishedRun& run : runs_that(is_tier_a)) {
    const MemoryEstimate memory = predicted_memory(run);
    const Device device = run.cluster().device;
    const auto in_use = static_cast<double>(memory.total() - memory.overhead);
    EXPECT_LE(in_use, device.memory_bytes) << run.text("id");
    const double share =
        static_cast<double>(memory.total()) / device.memory_bytes;
    EXPECT_LE(share, 1.02) << run.text("id");
    if (is_crowded(memory, device)) {
      ++crowded;
      print(run, "s", run.number("derived_step_s"), predicted_seconds(run));
      std::printf("      needs %.3f of the device's memory\n", share);
    }
  }
  EXPECT_LE(crowded, 8);
}

/// No bound: another runtime than FSDP, or more than data parallelism.
TEST(PublishedRuns, OfOtherTiersAreShownApart) {
  const auto others = runs_that([](const PublishedRun& run) {
    return !is_tier_a(run) && !(is_yafsdp(run) && is_fsdp1(run));
  });
  std::vector<PublishedRun> timed;
  for (const PublishedRun& run : others) {
    const std::string reason =
        !run.beyond_the_planner().empty() ? run.beyond_the_planner()
        : !run.has("derived_step_s")      ? "states no speed in tokens"
                                          : "";
    if (reason.empty()) {
      timed.push_back(run);
    } else {
      std::printf(
          "%s  %s, %s: left out, %s\n",
          run.text("id").c_str(),
          run.text("model").c_str(),
          run.text("source").c_str(),
          reason.c_str());
    }
  }
  print_means(compare_seconds(timed));
  for (const PublishedRun& run : timed) {
    EXPECT_TRUE(std::isfinite(predicted_seconds(run))) << run.text("id");
  }
  EXPECT_EQ(timed.size() + 27, others.size());
}

TEST(Constants, AtMostSixAreFittedAndNoShareExceedsOne) {
  int fitted = 0;
  for (const Constant* constant : kConstants) {
    EXPECT_FALSE(constant->source.empty()) << constant->name;
    EXPECT_GT(constant->value, 0) << constant->name;
    if (constant->unit == "1") {
      EXPECT_LE(constant->value, 1) << constant->name;
    }
    fitted += constant->origin == Origin::kFitted ? 1 : 0;
  }
  EXPECT_EQ(kUnstatedNetwork.origin, Origin::kFitted);
  std::printf("%d constants are fitted, and one network's\n", fitted);
  EXPECT_LE(fitted, 6);
  for (const MatmulSize& size : kMatmulSizes) {
    EXPECT_LE(size.share, 1);
  }
  for (const Device& device : devices()) {
    EXPECT_LE(
        device.best_matmul_bf16, std::max(device.peak_bf16, device.peak_fp16))
        << device.name;
  }
}

} // namespace
} // namespace fsdp::plan
