#include "train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

std::string error_of(const std::vector<Setting>& settings, int world_size = 1) {
  try {
    check_train_options(make_train_options(settings), world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, PresetsGiveDefaultsAndSettingsWinOverThem) {
  const TrainOptions seed = make_train_options({{"preset", "seed"}});
  EXPECT_EQ(seed.steps, 30);
  EXPECT_EQ(seed.batch, 4);
  EXPECT_EQ(seed.seq, 128);
  EXPECT_EQ(seed.optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(seed.lr, 3e-4);
  EXPECT_EQ(seed.min_lr, 3e-4);
  EXPECT_EQ(seed.warmup, 0);
  EXPECT_EQ(seed.clip, 0);
  EXPECT_TRUE(seed.fixed_random_batch);

  const TrainOptions changed = make_train_options(
      {{"lr", "0.01"}, {"preset", "seed"}, {"lr", "0.02"}, {"data", "x"}});
  EXPECT_EQ(changed.lr, 0.02);
  EXPECT_EQ(changed.min_lr, 0.02);
  EXPECT_FALSE(changed.fixed_random_batch);
  EXPECT_EQ(make_train_options({}).preset, "bytes");
}

TEST(TrainOptions, ShortRunsHaveFewValidationsUnlessTheyAreAskedFor) {
  const auto evals = [](const std::vector<Setting>& settings) {
    return make_train_options(settings).evals;
  };
  EXPECT_EQ(evals({}), 6);
  EXPECT_EQ(evals({{"steps", "600"}}), 6);
  EXPECT_EQ(evals({{"steps", "150"}}), 3);
  EXPECT_EQ(evals({{"steps", "5"}}), 1);
  EXPECT_EQ(evals({{"minutes", "0.1"}}), 1);
  EXPECT_EQ(evals({{"minutes", "1"}}), 2);
  EXPECT_EQ(evals({{"minutes", "0.1"}, {"evals", "4"}}), 4);
  EXPECT_EQ(evals({{"preset", "seed"}}), 0);
}

class EnvironmentSettings : public testing::Test {
 protected:
  EnvironmentSettings() { set(nullptr, nullptr); }
  ~EnvironmentSettings() override { set("1", nullptr); }

  static void set(const char* threads, const char* launchers) {
    for (const auto& [name, value] :
         {std::pair("OMP_NUM_THREADS", threads),
          std::pair("FSDP_DEFAULT_THREADS", launchers)}) {
      value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    }
  }

  static int threads() {
    return make_train_options(environment_settings()).threads;
  }
};

TEST_F(EnvironmentSettings, TakeTheUsersThreadsButNotTheLaunchers) {
  EXPECT_EQ(threads(), 1);
  set("3", nullptr);
  EXPECT_EQ(threads(), 3);
  set("3,2", nullptr);
  EXPECT_EQ(threads(), 3);
  set("", nullptr);
  EXPECT_EQ(threads(), 1);
  set("4", "4");
  EXPECT_EQ(threads(), 1);
  // The user's, for a program below the launcher.
  set("3", "4");
  EXPECT_EQ(threads(), 3);
}

TEST_F(EnvironmentSettings, RefuseWhatIsNoThreadCount) {
  for (const std::string value : {"two", "0", "-1", "1025", "2.5", ",2"}) {
    set(value.c_str(), nullptr);
    try {
      environment_settings();
      ADD_FAILURE() << value;
    } catch (const ConfigError& error) {
      EXPECT_EQ(
          error.what(),
          "OMP_NUM_THREADS is \"" + value +
              "\": expected a whole number from 1 to 1024");
    }
  }
}

TEST(Config, OneStopLimitLiftsThePresetsOther) {
  EXPECT_EQ(make_train_options({}).minutes, 3);
  const TrainOptions by_steps = make_train_options({{"steps", "7"}});
  EXPECT_EQ(by_steps.steps, 7);
  EXPECT_EQ(by_steps.minutes, 0);
  const TrainOptions both =
      make_train_options({{"steps", "7"}, {"minutes", "0.5"}});
  EXPECT_EQ(both.steps, 7);
  EXPECT_EQ(both.minutes, 0.5);
}

TEST(Config, UnknownSettingNamesTheNearest) {
  EXPECT_EQ(
      error_of({{"microbatch", "4"}}),
      "'microbatch' is no setting of fsdp train: the nearest is 'micro-batch'");
  EXPECT_EQ(
      error_of({{"preset", "seeds"}}),
      "--preset 'seeds' is unknown: use one of seed, mid, bytes, words, tiny; "
      "the "
      "nearest is 'seed'");
}

TEST(Config, ValuesThatAreNoneAreRefusedByName) {
  const std::vector<std::pair<Setting, std::string>> cases{
      {{"steps", "ten"}, "a whole number of at least 0"},
      {{"steps", "-1"}, "a whole number of at least 0"},
      {{"steps", "1.5"}, "a whole number of at least 0"},
      {{"steps", ""}, "a whole number of at least 0"},
      {{"steps", "99999999999999999999"},
       "a whole number from 0 to 9223372036854775807"},
      {{"seed", "18446744073709551616"},
       "a whole number from 0 to 9223372036854775807"},
      {{"batch", "0"}, "a whole number of at least 1"},
      {{"threads", "0"}, "a whole number from 1 to 1024"},
      {{"minutes", "nan"}, "a number of at least 0"},
      {{"lr", "0"}, "a number above 0"},
      {{"lr", "1e-3x"}, "a number above 0"},
      {{"min-lr", "-1"}, "a number of at least 0"},
      {{"dtype", "BF16"}, "fp32 or bf16"},
      {{"optimizer", "adamW"}, "adamw, adam or sgd"},
      {{"reshard-after-forward", "yes"}, "auto, true or false"},
      {{"skip-nonfinite", "1"}, "true or false"},
      {{"backend", "mpi"}, "auto, self, shm or gloo"},
      {{"timeout", "0"}, "a number above 0"},
      {{"timeout", "1e9"}, "seconds from 0.001 to 1000000"},
      {{"data", ""}, "a file or folder"},
      {{"log-json", ""}, "a file name"},
      {{"profile", ""}, "a file name"},
      {{"prompt", ""}, "at least one byte"},
  };
  for (const auto& [setting, allowed] : cases) {
    EXPECT_EQ(
        error_of({setting}),
        "--" + setting.first + " '" + setting.second + "': expected " +
            allowed);
  }
}

TEST(Config, WhatDoesNotDivideIsAnError) {
  EXPECT_EQ(
      error_of({{"batch", "8"}}, 3),
      "--batch 8 does not divide over 3 ranks: choose a multiple of 3");
  EXPECT_EQ(
      error_of({{"batch", "12"}, {"micro-batch", "4"}}, 2),
      "--micro-batch 4 does not divide a rank's 6 sequences (--batch 12 over "
      "2 ranks)");
  EXPECT_EQ(error_of({{"batch", "12"}, {"micro-batch", "3"}}, 2), "no error");
}

TEST(Config, SettingsWithoutEffectAreErrors) {
  EXPECT_EQ(
      error_of({{"no-sync-accumulation", "true"}, {"batch", "8"}}, 2),
      "--no-sync-accumulation has no effect with one micro-batch per step: "
      "give a --micro-batch below 4");
  EXPECT_EQ(
      error_of({{"preset", "seed"}, {"evals", "2"}}),
      "--evals has no effect: preset seed trains on one random batch unless "
      "--data names something else");
  EXPECT_EQ(
      error_of({{"preset", "seed"}, {"prompt", "x"}}),
      "--prompt has no effect: preset seed is no model of bytes");
  EXPECT_EQ(
      error_of({{"prompt", "x"}, {"sample", "0"}}),
      "--prompt has no effect with --sample 0");
}

TEST(Config, AskingForNoneOfWhatIsNotThereIsNoError) {
  EXPECT_EQ(
      error_of({{"preset", "seed"}, {"sample", "0"}, {"evals", "0"}}),
      "no error");
  EXPECT_EQ(
      error_of({{"preset", "seed"}, {"sample", "1"}}),
      "--sample has no effect: preset seed is no model of bytes");
}

TEST(Config, LogitsOfOnePassMustFitTheMemory) {
  const auto error_with = [](std::vector<Setting> settings,
                             std::uint64_t available) -> std::string {
    settings.insert(settings.begin(), {"preset", "tiny"});
    settings.insert(settings.begin(), {"seq", "250"});
    try {
      check_train_options(
          make_train_options(settings), 2, {available, "a test's"});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  // 50 sequences x 250 tokens x 256 bytes x 4
  constexpr std::uint64_t kLogits = 12'800'000;
  EXPECT_EQ(error_with({{"batch", "100"}}, kLogits), "no error");
  EXPECT_EQ(
      error_with({{"batch", "100"}}, kLogits - 1),
      "--batch 100 over 2 ranks, --seq 250: the logits of one pass alone take "
      "0.0128 GB (50 sequences x 250 tokens x a vocabulary of 256 x 4 bytes), "
      "0.0128 GB are available (a test's); lower --batch, give a --micro-batch "
      "or lower --seq");
  EXPECT_EQ(
      error_with({{"batch", "200"}, {"micro-batch", "50"}}, kLogits),
      "no error");
  EXPECT_EQ(
      error_with({{"batch", "200"}, {"micro-batch", "50"}}, 1'000'000),
      "--micro-batch 50, --seq 250: the logits of one pass alone take 0.0128 "
      "GB (50 sequences x 250 tokens x a vocabulary of 256 x 4 bytes), 0.001 "
      "GB are available (a test's); lower --micro-batch or lower --seq");
  // Beyond what the arithmetic holds.
  EXPECT_EQ(
      error_with({{"batch", "9223372036854775806"}, {"micro-batch", "1"}}, 1),
      "--batch 9223372036854775806 x --seq 250: expected at most "
      "9223372036854775807 tokens per step; lower one of them");
  EXPECT_THAT(
      error_of(
          {{"preset", "seed"}, {"batch", "1"}, {"seq", "9223372036854775807"}}),
      testing::StartsWith(
          "--batch 1 over 1 ranks, --seq 9223372036854775807: the logits of "
          "one pass alone take 3.689e+14 GB "));
}

TEST(Config, ContradictionsAreErrors) {
  EXPECT_EQ(
      error_of({{"preset", "words"}}),
      "preset words trains on token files: name them with --data");
  EXPECT_EQ(
      error_of({{"steps", "0"}}),
      "nothing says when to stop: give --steps or --minutes");
  EXPECT_EQ(
      error_of({{"lr", "0.001"}, {"min-lr", "0.01"}}),
      "--min-lr must not exceed --lr: the learning rate falls to it");
  EXPECT_EQ(
      error_of({{"preset", "tiny"}, {"seq", "257"}}),
      "--seq 257: preset tiny holds at most 256 positions");
}

TEST(Config, DescriptionShowsEveryFlagWithItsValue) {
  const std::string text = describe(make_train_options(
      {{"preset", "tiny"},
       {"lr", "0.25"},
       {"timeout", "1.5"},
       {"reshard-after-forward", "false"},
       {"skip-nonfinite", "true"}}));
  for (const TrainFlag& flag : train_flags()) {
    EXPECT_THAT(" " + text, testing::HasSubstr(" " + flag.name + "="));
  }
  EXPECT_THAT(text, testing::HasSubstr("preset=tiny data=(default text) "));
  EXPECT_THAT(text, testing::HasSubstr(" lr=0.25 "));
  EXPECT_THAT(text, testing::HasSubstr(" timeout=1.5 "));
  EXPECT_THAT(text, testing::HasSubstr(" reshard-after-forward=false "));
  EXPECT_THAT(text, testing::HasSubstr(" skip-nonfinite=true "));
}

TEST(Config, EveryFlagChangesTheOptions) {
  const std::vector<Setting> changes{
      {"preset", "mid"},
      {"data", "elsewhere"},
      {"steps", "9"},
      {"minutes", "9"},
      {"batch", "9"},
      {"micro-batch", "9"},
      {"seq", "9"},
      {"dtype", "bf16"},
      {"optimizer", "sgd"},
      {"lr", "9"},
      {"warmup", "9"},
      {"min-lr", "9"},
      {"weight-decay", "9"},
      {"clip", "9"},
      {"skip-nonfinite", "true"},
      {"seed", "9"},
      {"threads", "9"},
      {"no-sync-accumulation", "true"},
      {"reshard-after-forward", "true"},
      {"prefetch", "9"},
      {"backend", "gloo"},
      {"timeout", "9"},
      {"log-json", "elsewhere"},
      {"profile", "elsewhere"},
      {"evals", "9"},
      {"prompt", "elsewhere"},
      {"sample", "9"},
  };
  std::set<std::string> covered;
  const TrainOptions plain = make_train_options({});
  for (const Setting& change : changes) {
    covered.insert(change.first);
    const TrainOptions changed = make_train_options({change});
    for (const TrainFlag& flag : train_flags()) {
      if (flag.name == change.first) {
        EXPECT_NE(flag.get(changed), flag.get(plain)) << flag.name;
      }
    }
  }
  EXPECT_EQ(covered.size(), train_flags().size());
}

} // namespace
} // namespace fsdp
