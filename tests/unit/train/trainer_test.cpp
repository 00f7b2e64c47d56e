// The training loop: the same run on any number of ranks, and what it does with
// each option.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "trainer_runs.h"

namespace fsdp {
namespace {

using testing::relative_difference;
using testing::run_trainer;
using testing::TrainRun;

/// Text with some order in it, in a file.
std::string text_file() {
  static const std::string path = [] {
    const std::vector<std::string> words{
        "gather ", "shard ", "reduce ", "rank ", "step\n", "loss ", "wait "};
    std::string text;
    for (unsigned i = 0; text.size() < 40'000; ++i) {
      text += words[(i * i / 3 + i) % words.size()];
    }
    const auto file =
        std::filesystem::temp_directory_path() /
        ("fsdp_trainer_test_" + std::to_string(::getpid()) + ".txt");
    std::ofstream(file) << text;
    return file.string();
  }();
  return path;
}

/// A short run of preset tiny on text; later settings win.
std::vector<Setting> tiny(const std::vector<Setting>& more = {}) {
  std::vector<Setting> settings{
      {"preset", "tiny"},
      {"data", text_file()},
      {"steps", "6"},
      {"batch", "12"},
      {"seq", "16"},
      {"evals", "0"},
      {"sample", "0"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

double weight_difference(const TrainRun& a, const TrainRun& b) {
  double most = 0;
  for (const auto& [name, weight] : a.weights) {
    most = std::max(
        most, (weight - b.weights.at(name)).abs().max().item<double>());
  }
  return most;
}

TEST(Trainer, RunsTheSameOnAnyNumberOfRanksAndMicroBatches) {
  const TrainRun alone = run_trainer(1, tiny());
  ASSERT_EQ(alone.steps.size(), 6U);
  EXPECT_LT(alone.steps.back().loss, alone.steps.front().loss);
  for (const int size : {2, 3, 4}) {
    for (const std::vector<Setting>& more :
         {std::vector<Setting>{},
          {{"micro-batch", "1"}},
          {{"micro-batch", "1"}, {"no-sync-accumulation", "true"}},
          {{"reshard-after-forward", "false"}, {"prefetch", "0"}}}) {
      const TrainRun run = run_trainer(size, tiny(more));
      EXPECT_LT(relative_difference(run.losses(), alone.losses()), 5e-6);
      for (std::size_t i = 0; i < run.steps.size(); ++i) {
        const double norm = alone.steps[i].grad_norm;
        EXPECT_NEAR(run.steps[i].grad_norm, norm, 1e-5 * norm);
      }
      EXPECT_LT(weight_difference(run, alone), 1e-4);
      EXPECT_EQ(run.summary.num_tokens, 6 * 12 * 16);
    }
  }
}

TEST(Trainer, SecondRunIsBitIdentical) {
  const auto settings = tiny({{"evals", "2"}, {"sample", "20"}});
  const TrainRun first = run_trainer(3, settings);
  const TrainRun second = run_trainer(3, settings);
  EXPECT_EQ(first.losses(), second.losses());
  EXPECT_EQ(first.validations, second.validations);
  EXPECT_EQ(first.sample, second.sample);
  EXPECT_EQ(weight_difference(first, second), 0);
}

TEST(Trainer, FixedRandomBatchIsSplitOverTheRanks) {
  const std::vector<Setting> settings{
      {"preset", "seed"}, {"steps", "2"}, {"seq", "8"}};
  const TrainRun alone = run_trainer(1, settings);
  EXPECT_NEAR(alone.steps[0].loss, 9.35, 0.3);
  EXPECT_LT(alone.steps[1].loss, alone.steps[0].loss - 0.1);
  for (const int size : {2, 4}) {
    const TrainRun run = run_trainer(size, settings);
    EXPECT_LT(relative_difference(run.losses(), alone.losses()), 5e-6);
  }
}

TEST(Trainer, ComputesInBFloat16WhenTold) {
  const TrainRun exact = run_trainer(2, tiny());
  std::set<at::ScalarType> logits;
  const TrainRun rounded = run_trainer(
      2, tiny({{"dtype", "bf16"}}), [&](int rank, LanguageModel& model) {
        const auto forward = model.forward;
        model.forward = [&logits, rank, forward](const at::Tensor& tokens) {
          const at::Tensor result = forward(tokens);
          if (rank == 0) {
            logits.insert(result.scalar_type());
          }
          return result;
        };
      });
  EXPECT_EQ(logits, std::set{at::kBFloat16});
  EXPECT_NE(rounded.losses(), exact.losses());
  EXPECT_LT(relative_difference(rounded.losses(), exact.losses()), 1e-2);
  EXPECT_EQ(rounded.weights.begin()->second.scalar_type(), at::kFloat);
}

TEST(Trainer, ValidatesTheSameWindowsOnAnyNumberOfRanks) {
  const auto settings =
      tiny({{"evals", "3"}, {"steps", "6"}, {"micro-batch", "3"}});
  const TrainRun alone = run_trainer(1, settings);
  ASSERT_EQ(alone.validations.size(), 3U);
  EXPECT_EQ(alone.validations[0].first, 2);
  EXPECT_EQ(alone.validations[2].first, 6);
  EXPECT_EQ(alone.summary.validation_loss, alone.validations[2].second);
  for (const int size : {2, 4}) {
    const TrainRun run = run_trainer(size, settings);
    ASSERT_EQ(run.validations.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      const double loss = alone.validations[i].second;
      EXPECT_NEAR(run.validations[i].second, loss, 5e-6 * loss);
    }
    EXPECT_EQ(run.summary.trigram_loss, alone.summary.trigram_loss);
  }
  EXPECT_LT(*alone.summary.trigram_loss, *alone.summary.bigram_loss);
}

TEST(Trainer, SamplesTheSameTextOnAnyNumberOfRanks) {
  const auto settings =
      tiny({{"sample", "24"}, {"prompt", "rank"}, {"steps", "1"}});
  const TrainRun alone = run_trainer(1, settings);
  EXPECT_EQ(alone.sample.size(), 24U);
  EXPECT_EQ(run_trainer(3, settings).sample, alone.sample);
  EXPECT_NE(
      run_trainer(
          1, tiny({{"sample", "24"}, {"prompt", "wait"}, {"steps", "1"}}))
          .sample,
      alone.sample);
}

TEST(Trainer, StopsAfterItsMinutesOnAllRanksAlike) {
  const TrainRun run =
      run_trainer(3, tiny({{"steps", "0"}, {"minutes", "0.005"}}));
  EXPECT_GT(run.steps.size(), 1U);
  EXPECT_GE(run.summary.seconds, 0.3);
  EXPECT_EQ(run.steps.back().progress, 1);
  EXPECT_LT(run.steps[run.steps.size() - 2].progress, 1);
}

TEST(Trainer, StepMetricsAddUp) {
  const TrainRun run = run_trainer(2, tiny());
  double seconds = 0;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const StepMetrics& step = run.steps[i];
    EXPECT_EQ(step.step, static_cast<std::int64_t>(i) + 1);
    EXPECT_GT(step.optim_ms, 0);
    EXPECT_GE(step.wait_ms, 0);
    EXPECT_GT(step.reduce_ms, 0);
    EXPECT_LT(step.optim_ms + step.wait_ms + step.reduce_ms, step.step_ms);
    EXPECT_NEAR(
        step.tokens_per_s * step.step_ms / 1e3, 12 * 16, 1e-6 * 12 * 16);
    EXPECT_GT(step.peak_tensor_bytes, 4 * 100'000);
    seconds += step.step_ms / 1e3;
  }
  EXPECT_NEAR(run.summary.seconds, seconds, 1e-9);
  // The rank that comes last to a meeting does not wait there.
  EXPECT_GT(run.summary.wait_seconds, 0);
  EXPECT_EQ(run.summary.memory.size(), 2U);
  EXPECT_THAT(run.header.ranks, ::testing::StartsWith("2 rank(s) over inproc"));
  EXPECT_THAT(run.header.model, ::testing::StartsWith("tiny: decoder"));
}

TEST(Trainer, EveryOptionOfTheLoopChangesTheRun) {
  const auto base = tiny({{"warmup", "0"}, {"lr", "0.003"}});
  const TrainRun plain = run_trainer(2, base);
  for (const Setting& change : std::vector<Setting>{
           {"seq", "20"},
           {"batch", "16"},
           {"optimizer", "adam"},
           {"optimizer", "sgd"},
           {"lr", "0.004"},
           {"warmup", "3"},
           {"min-lr", "0.002"},
           {"weight-decay", "0.5"},
           {"clip", "0.01"},
           {"seed", "5"}}) {
    auto settings = base;
    settings.push_back(change);
    const TrainRun run = run_trainer(2, settings);
    EXPECT_NE(run.steps.back().loss, plain.steps.back().loss)
        << change.first << " " << change.second;
  }
}

TEST(Trainer, RuntimeOptionsReachTheRuntime) {
  const TrainRun plain = run_trainer(2, tiny());
  const TrainRun kept =
      run_trainer(2, tiny({{"reshard-after-forward", "false"}}));
  EXPECT_LT(kept.counters.num_unshards, plain.counters.num_unshards);
  const TrainRun all =
      run_trainer(2, tiny({{"reshard-after-forward", "true"}}));
  EXPECT_GT(all.counters.num_unshards, plain.counters.num_unshards);

  const TrainRun synced = run_trainer(2, tiny({{"micro-batch", "2"}}));
  EXPECT_EQ(synced.counters.num_reductions, 3 * plain.counters.num_reductions);
  const TrainRun unsynced = run_trainer(
      2, tiny({{"micro-batch", "2"}, {"no-sync-accumulation", "true"}}));
  EXPECT_EQ(unsynced.counters.num_reductions, plain.counters.num_reductions);

  for (const int threads : {2, 1}) {
    const auto count = std::to_string(threads);
    const TrainRun run =
        run_trainer(1, tiny({{"threads", count}, {"steps", "1"}}));
    EXPECT_EQ(run.num_threads, threads);
  }
}

/// Of the units below the root, which may stay gathered.
struct Gathers {
  int most_at_once = 0;
  int num_ahead = 0; ///< begun before the unit was needed

  void operator()(UnitEvent event, const std::string& unit) {
    if (unit.empty()) {
      return;
    }
    now_ += event == UnitEvent::kUnshard ? 1 : 0;
    now_ -= event == UnitEvent::kReshard ? 1 : 0;
    most_at_once = std::max(most_at_once, now_);
    if (event == UnitEvent::kWaitUnshard && last_gathered_ != unit) {
      ++num_ahead;
    }
    last_gathered_ = event == UnitEvent::kUnshard ? unit : "";
  }

 private:
  int now_ = 0;
  std::string last_gathered_; ///< by the last event
};

TEST(Trainer, PrefetchGathersUnitsAheadAndChangesNoBit) {
  for (const char* backend : {"inproc", "gloo"}) { // an engine each
    std::vector<double> losses;
    for (const int depth : {0, 1, 2}) {
      SCOPED_TRACE(std::string(backend) + " " + std::to_string(depth));
      TrainRun run;
      Gathers gathers;
      const TrainOptions options = make_train_options(tiny(
          {{"preset", "bytes"}, // four blocks
           {"steps", "2"},
           {"batch", "2"},
           {"prefetch", std::to_string(depth)}}));
      testing::with_ranks(
          2,
          [&](const ProcessGroup& world) {
            Trainer trainer(options, world, {&run});
            if (world.rank() == 0) {
              set_unit_observer(*trainer.model().module, std::ref(gathers));
            }
            trainer.run();
          },
          backend);
      // One more than the unit in use at least: it goes when the next has come.
      EXPECT_EQ(gathers.most_at_once, std::max(depth, 1) + 1);
      EXPECT_EQ(gathers.num_ahead > 0, depth > 0);
      losses = depth == 0 ? run.losses() : losses;
      EXPECT_EQ(run.losses(), losses);
      EXPECT_EQ(losses.size(), 2U);
    }
  }
}

/// Makes the loss of `bad_rank` NaN in its forward number `bad_step`.
testing::ChangeModel nan_at(int bad_rank, int bad_step) {
  return [=](int rank, LanguageModel& model) {
    const auto forward = model.forward;
    model.forward = [=, step = 0](const at::Tensor& tokens) mutable {
      const bool bad = rank == bad_rank && ++step == bad_step;
      const at::Tensor logits = forward(tokens);
      return bad ? logits * std::nan("") : logits;
    };
  };
}

TEST(Trainer, OneRanksNaNIsSkippedByAllRanks) {
  const TrainRun run = run_trainer(
      4, tiny({{"skip-nonfinite", "true"}, {"steps", "2"}}), nan_at(3, 2));
  EXPECT_EQ(run.summary.num_skipped, 1);
  EXPECT_FALSE(run.steps[0].skipped);
  EXPECT_TRUE(run.steps[1].skipped);
  // Without the second step the same weights: those of a run of one step. Its
  // learning rate was the warmup's, which the run's length does not change.
  const TrainRun one = run_trainer(4, tiny({{"steps", "1"}}));
  EXPECT_EQ(weight_difference(run, one), 0);
  const TrainRun two = run_trainer(4, tiny({{"steps", "2"}}));
  EXPECT_GT(weight_difference(two, one), 0);
}

TEST(Trainer, TrainingGoesOnAfterASkippedStep) {
  const TrainRun run = run_trainer(
      2, tiny({{"skip-nonfinite", "true"}, {"steps", "8"}}), nan_at(0, 3));
  EXPECT_EQ(run.summary.num_skipped, 1);
  EXPECT_LT(run.steps.back().loss, run.steps.front().loss);
}

TEST(Trainer, OneRanksNaNStopsAllRanksWithItsName) {
  std::vector<std::string> texts(4);
  testing::with_ranks(4, [&](const ProcessGroup& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Trainer trainer(
        make_train_options(tiny()),
        world,
        {},
        testing::changed_model(world.rank(), nan_at(3, 2)));
    try {
      trainer.run();
    } catch (const Error& error) {
      texts[rank] = error.what();
    }
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(
        texts[rank],
        "[rank " + std::to_string(rank) +
            "] step 2: the loss of rank 3 is not finite, the weights were "
            "left as they were; lower --lr, or give --skip-nonfinite to skip "
            "such steps");
  }
}

TEST(Trainer, AGradientThatIsNotFiniteStopsAllRanks) {
  const auto overflow = [](int rank, LanguageModel& model) {
    const auto forward = model.forward;
    model.forward = [=](const at::Tensor& tokens) {
      const at::Tensor logits = forward(tokens);
      if (rank == 1) {
        logits.register_hook(
            [](const at::Tensor& grad) { return grad * 1e30 * 1e30; });
      }
      return logits;
    };
  };
  try {
    run_trainer(2, tiny(), overflow);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr(
            "step 1: the gradient norm is not finite though every rank's loss "
            "is, the weights were left as they were"));
  }
}

TEST(Trainer, AFailureOfOneRankReachesTheOthers) {
  struct Failing : TrainObserver {
    void on_step(const StepMetrics&) override {
      throw DataError("the disk is full");
    }
  };
  Failing failing;
  std::string peer;
  testing::with_ranks(2, [&](const ProcessGroup& world) {
    Trainer trainer(make_train_options(tiny()), world, {&failing});
    try {
      trainer.run();
    } catch (const PeerError& error) {
      peer = error.what();
    } catch (const DataError&) {
    }
  });
  EXPECT_THAT(peer, ::testing::HasSubstr("the disk is full"));
}

TEST(Trainer, AnErrorOfLibTorchIsOneLineOnEveryRank) {
  struct Failing : TrainObserver {
    void on_step(const StepMetrics&) override {
      TORCH_CHECK(false, "one line\nand another");
    }
  };
  Failing failing;
  std::string own;
  std::string peer;
  testing::with_ranks(2, [&](const ProcessGroup& world) {
    Trainer trainer(make_train_options(tiny()), world, {&failing});
    try {
      trainer.run();
    } catch (const PeerError& error) {
      peer = error.what();
    } catch (const std::exception& error) {
      own = error.what();
    }
  });
  EXPECT_EQ(own, "one line and another");
  EXPECT_THAT(peer, ::testing::HasSubstr(own));
  EXPECT_THAT(peer, ::testing::Not(::testing::HasSubstr("\n")));
}

TEST(Trainer, UnreadableDataIsNamedOnEveryRank) {
  try {
    run_trainer(2, tiny({{"data", "/no/such/text"}}));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(
        error.what(),
        "--data '/no/such/text': cannot be read: No such file or directory");
  }
}

} // namespace
} // namespace fsdp
