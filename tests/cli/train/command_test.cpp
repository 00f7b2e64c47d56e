// The command line of `fsdp train`: settings, files, errors, what is printed.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train_fixture.h"

namespace fsdp::testing {
namespace {

/// A port that nobody listens on now.
std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, any, length), 0);
  EXPECT_EQ(::getsockname(fd, any, &length), 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

using ::testing::HasSubstr;
using ::testing::Not;

class TrainCommand : public TrainTest {
 protected:
  /// A short run of preset tiny, but for what `more` sets otherwise.
  Arguments tiny(const Arguments& more) const {
    Arguments options = more;
    for (const auto& [flag, value] :
         std::vector<std::pair<std::string, std::string>>{
             {"--preset", "tiny"},
             {"--data", text_file()},
             {"--batch", "4"},
             {"--seq", "16"},
             {"--sample", "8"}}) {
      if (std::find(more.begin(), more.end(), flag) == more.end()) {
        options.insert(options.end(), {flag, value});
      }
    }
    return options;
  }

  void expect_error(
      const Arguments& args, int exit_code, const std::string& line) const {
    const ProcessResult result = run(args);
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(result.err, line + "\n");
    EXPECT_EQ(result.out, "");
  }
};

TEST_F(TrainCommand, TrainsOnTwoRanksAndRankZeroAloneTellsAboutIt) {
  const std::string log = path("log.json");
  const ProcessResult result =
      run(on_ranks(2, tiny({"--steps", "3", "--log-json", log})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] 2 rank(s) over shm, 1 thread"));
  EXPECT_THAT(result.out, HasSubstr("[rank 0] settings: preset=tiny data="));
  EXPECT_THAT(result.out, HasSubstr(" steps=3 minutes=0 batch=4 "));
  EXPECT_THAT(result.out, HasSubstr("[rank 0] step 3  validation loss "));
  EXPECT_THAT(result.out, HasSubstr("a trigram table's "));
  EXPECT_THAT(result.out, HasSubstr("peak tensor bytes by rank: "));
  EXPECT_THAT(result.out, Not(HasSubstr("[rank 1]")));
  EXPECT_THAT(result.out, Not(HasSubstr("\r")));

  const auto steps = read_log(log);
  ASSERT_EQ(steps.size(), 3U);
  std::vector<std::string> keys;
  for (const auto& [key, value] : steps[2].items()) {
    keys.push_back(key);
    EXPECT_TRUE(value.is_number()) << key;
  }
  EXPECT_THAT(
      keys,
      ::testing::UnorderedElementsAre(
          "step",
          "loss",
          "grad_norm",
          "tokens_per_s",
          "step_ms",
          "wait_ms",
          "reduce_ms",
          "optim_ms",
          "peak_tensor_bytes"));
  EXPECT_EQ(steps[2].at("step"), 3);
}

TEST_F(TrainCommand, ConfigurationFilesHaveTheFlagsNamesAndFlagsWin) {
  const std::string toml = write(
      "run.toml",
      "# a run\nlr = 0.002\nsteps = 9\nskip-nonfinite = true\n"
      "dtype = \"bf16\"\n");
  const ProcessResult result =
      run(alone(tiny({"--config", toml, "--steps", "2"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" steps=2 "));
  EXPECT_THAT(result.out, HasSubstr(" lr=0.002 "));
  EXPECT_THAT(result.out, HasSubstr(" dtype=bf16 "));
  EXPECT_THAT(result.out, HasSubstr(" skip-nonfinite=true "));
}

TEST_F(TrainCommand, ConfigurationMistakesNameTheFileAndTheNearestKey) {
  const std::string unknown = write("a.toml", "stesp = 3\n");
  expect_error(
      alone({"--config", unknown}),
      2,
      "fsdp train: --config '" + unknown +
          "': 'stesp' is no setting of fsdp train: the nearest is 'steps'");
  const std::string wrong = write("b.toml", "dtype = fp16\n");
  expect_error(
      alone({"--config", wrong}),
      2,
      "fsdp train: --config '" + wrong +
          "': --dtype 'fp16': expected fp32 or bf16");
  const std::string gone = path("gone.toml");
  expect_error(
      alone({"--config", gone}),
      2,
      "fsdp train: --config '" + gone + "': cannot be read");
  const std::string section = write("c.toml", "[train]\nsteps = 3\n");
  expect_error(
      alone({"--config", section}),
      2,
      "fsdp train: --config '" + section +
          "': sections are not known here, name the keys without one");
}

TEST_F(TrainCommand, MistakesInFlagsAreOneLineAndStatusTwo) {
  expect_error(
      alone({"--stesp", "3"}),
      2,
      "fsdp train: unknown option --stesp: did you mean --steps? (see fsdp "
      "train --help)");
  expect_error(
      alone({"--dtype", "fp16"}),
      2,
      "fsdp train: --dtype 'fp16': expected fp32 or bf16");
  expect_error(
      alone({"--preset", "byte"}),
      2,
      "fsdp train: --preset 'byte' is unknown: use one of seed, mid, bytes, "
      "words, "
      "tiny; the nearest is 'bytes'");
  expect_error(
      alone({"--backend", "mpi"}),
      2,
      "fsdp train: --backend 'mpi': expected auto, self, shm or gloo");
}

TEST_F(TrainCommand, ConfigurationNamesAFile) {
  expect_error(
      alone({"--config", folder_.string()}),
      2,
      "fsdp train: --config '" + folder_.string() +
          "': is a folder, expected a file of settings");
  expect_error(
      alone({"--config", ""}),
      2,
      "fsdp train: --config '': expected a file of settings");
}

TEST_F(TrainCommand, SwitchesTakeTrueAndFalseAsTheFileDoes) {
  const ProcessResult off =
      run(alone(tiny({"--steps", "1", "--skip-nonfinite=false"})));
  EXPECT_EQ(off.exit_code, 0) << off.err;
  EXPECT_THAT(off.out, HasSubstr(" skip-nonfinite=false "));
  const std::string toml = write("run.toml", "skip-nonfinite = false\n");
  const ProcessResult on =
      run(alone(tiny({"--config", toml, "--steps", "1", "--skip-nonfinite"})));
  EXPECT_EQ(on.exit_code, 0) << on.err;
  EXPECT_THAT(on.out, HasSubstr(" skip-nonfinite=true "));
  expect_error(
      alone({"--skip-nonfinite=maybe"}),
      2,
      "fsdp train: --skip-nonfinite 'maybe': expected true or false");
  expect_error(
      alone({"--no-sync-accumulation=0"}),
      2,
      "fsdp train: --no-sync-accumulation '0': expected true or false");
  expect_error(
      alone({"--skip-nonfinite=", "--steps", "1"}),
      2,
      "fsdp train: unexpected \"\": expected options only");
}

TEST_F(TrainCommand, FlagsAreGivenOnceAtMost) {
  expect_error(
      alone({"--steps", "1", "--seed", "3", "--steps", "2"}),
      2,
      "fsdp train: --steps is given 2 times ('1', '2'): expected it once at "
      "most");
  expect_error(
      alone({"--skip-nonfinite", "--skip-nonfinite=false"}),
      2,
      "fsdp train: --skip-nonfinite is given 2 times ('true', 'false'): "
      "expected it once at most");
  expect_error(
      alone({"--config", "a", "--config", "b"}),
      2,
      "fsdp train: --config is given 2 times ('a', 'b'): expected it once at "
      "most");
}

TEST_F(TrainCommand, SizesBeyondAllMemoryAreRefusedBeforeAnythingIsBuilt) {
  const ProcessResult result =
      run(alone(tiny({"--steps", "1", "--batch", "9223372036854775806"})));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(
      result.err,
      "fsdp train: --batch 9223372036854775806 x --seq 16: expected at most "
      "9223372036854775807 tokens per step; lower one of them\n");
  const ProcessResult large =
      run(alone(tiny({"--steps", "1", "--batch", "2000000000"})));
  EXPECT_EQ(large.exit_code, 2);
  EXPECT_THAT(large.err, HasSubstr("the logits of one pass alone take "));
  EXPECT_LT(large.elapsed, 10s);
}

TEST_F(TrainCommand, UnusableDataIsOneLineAndAFailure) {
  expect_error(
      alone(tiny({"--data", path("gone")})),
      1,
      "fsdp train: --data '" + path("gone") +
          "': cannot be read: No such file or directory");
  const std::string small = write("small.txt", std::string(100, 'x'));
  expect_error(
      alone(tiny({"--data", small})),
      1,
      "fsdp train: --data '" + small +
          "': too short: the validation part holds 5 tokens, at least 17 are "
          "needed (--seq and one more)");
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_error(
      alone(tiny({"--data", pipe})),
      1,
      "fsdp train: --data '" + pipe + "': is no regular file and no folder");
}

TEST_F(TrainCommand, TrainsOnTokenFilesOfNanoGptAndOfLlmC) {
  const auto number = [](std::int32_t value, int num_bytes) {
    std::string bytes;
    for (int i = 0; i < num_bytes; ++i) {
      bytes += static_cast<char>(value >> (8 * i));
    }
    return bytes;
  };
  std::string tokens;
  for (int i = 0; i < 1000; ++i) {
    tokens += number(i * i % 251, 2);
  }
  std::string header = number(20240520, 4) + number(1, 4) + number(1000, 4);
  header.resize(1024);
  std::vector<std::string> losses;
  for (const std::string& content : {tokens, header + tokens}) {
    const std::string file = write("tokens.bin", content);
    const std::string log = path("log.json");
    const ProcessResult result = run(
        on_ranks(2, tiny({"--data", file, "--steps", "2", "--log-json", log})));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(
        result.out,
        HasSubstr(
            "data: 1 token file(s) of " + file +
            ", 1000 tokens, last 5 % for validation"));
    EXPECT_THAT(result.out, HasSubstr("step 2  validation loss "));
    EXPECT_THAT(result.out, Not(HasSubstr("bigram")));
    losses.push_back(read_log(log).at(1).at("loss").dump());
  }
  EXPECT_EQ(losses[0], losses[1]);

  const std::string odd = write("odd.bin", tokens + "x");
  expect_error(
      alone(tiny({"--data", odd})),
      1,
      "fsdp train: token file '" + odd +
          "': 2001 bytes are no whole number of 16-bit tokens");
}

TEST_F(TrainCommand, WhatDoesNotDivideEndsAllRanks) {
  const ProcessResult result = run(on_ranks(3, tiny({"--steps", "1"})));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr(
          "--batch 4 does not divide over 3 ranks: choose a multiple of 3"));
}

TEST_F(TrainCommand, ALogThatCannotBeWrittenEndsAllRanks) {
  const ProcessResult result = run(
      on_ranks(2, tiny({"--steps", "1", "--log-json", "/no/such/folder/x"})));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr(
          "[rank 0] fsdp train: --log-json '/no/such/folder/x': cannot be "
          "written: No such file or directory"));
  EXPECT_LT(result.elapsed, 30s);
}

TEST_F(TrainCommand, AProfileIsReadByTrace) {
  const std::string profile = path("profile.json");
  const ProcessResult trained =
      run(on_ranks(2, tiny({"--steps", "6", "--profile", profile})));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProcessResult traced = run({FSDP_PROGRAM, "trace", profile, "--json"});
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  const auto diagnosis = nlohmann::json::parse(traced.out);
  EXPECT_EQ(diagnosis.at("ranks"), 1); // rank 0 records
  const double seconds = diagnosis.at("seconds");
  const double compute = diagnosis.at("compute_s");
  EXPECT_GT(compute, 0.1 * seconds);
  EXPECT_LT(compute, seconds);
  EXPECT_GT(diagnosis.at("optimizer_s"), 0);
  EXPECT_GT(diagnosis.at("exposed_reduce_s"), 0);
}

TEST_F(TrainCommand, AProfileThatWouldBeEmptyOrLostIsRefused) {
  const ProcessResult unwritable = run(
      on_ranks(2, tiny({"--steps", "3", "--profile", "/no/such/folder/x"})));
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_THAT(
      unwritable.err,
      HasSubstr("[rank 0] fsdp train: --profile '/no/such/folder/x': cannot be "
                "written: No such file or directory"));
  const ProcessResult short_run =
      run(on_ranks(1, tiny({"--steps", "2", "--profile", path("p.json")})));
  EXPECT_EQ(short_run.exit_code, 2);
  EXPECT_THAT(
      short_run.err,
      HasSubstr("--profile records from step 3 on, and --steps is 2: expected "
                "that many or more"));
}

TEST_F(TrainCommand, BackendAndTimeoutReachTheGroup) {
  const ProcessResult result = run(on_ranks(
      2, tiny({"--steps", "1", "--backend", "gloo", "--timeout", "60"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] 2 rank(s) over gloo"));
  // Rank 0 of two: the other never comes.
  const ProcessResult lonely = run_process(
      alone(tiny({"--steps", "1", "--timeout", "2"})),
      {.env = {
           {"RANK", "0"},
           {"WORLD_SIZE", "2"},
           {"LOCAL_RANK", "0"},
           {"LOCAL_WORLD_SIZE", "2"},
           {"MASTER_ADDR", "127.0.0.1"},
           {"MASTER_PORT", free_port()}}});
  EXPECT_EQ(lonely.exit_code, 1);
  EXPECT_THAT(lonely.err, HasSubstr("rank 1"));
  EXPECT_LT(lonely.elapsed, 30s);
}

TEST_F(TrainCommand, ThreadsAreTheFlagsThenTheUsersThenOne) {
  const std::string toml = write("run.toml", "threads = 4\n");
  struct Case {
    std::optional<std::string> variable;
    Arguments flags;
    std::string threads;
  };
  for (const Case& c : std::vector<Case>{
           {std::nullopt, {}, "1"}, // fsdp run sets as many as there are cores
           {"2", {}, "2"},
           {"2", {"--config", toml}, "4"},
           {"2", {"--config", toml, "--threads", "3"}, "3"},
           {std::nullopt, {"--threads", "3"}, "3"}}) {
    Arguments flags = tiny({"--steps", "1", "--sample", "0", "--evals", "0"});
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    const ProcessResult result = run_process(
        on_ranks(1, flags), {.env = {{"OMP_NUM_THREADS", c.variable}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(
        result.out, HasSubstr("over self, " + c.threads + " thread(s) each"));
    EXPECT_THAT(result.out, HasSubstr(" threads=" + c.threads + " "));
  }
}

TEST_F(TrainCommand, TerminalsGetALiveLine) {
  ProcessOptions options;
  options.terminal = true;
  const ProcessResult result =
      run_process(on_ranks(2, tiny({"--steps", "5"})), options);
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("\r"));
  EXPECT_THAT(result.out, HasSubstr("step 1  loss "));
}

TEST_F(TrainCommand, HelpShowsEveryFlag) {
  const ProcessResult result = run(alone({"--help"}));
  EXPECT_EQ(result.exit_code, 0);
  for (const char* flag :
       {"--preset",
        "--data",
        "--steps",
        "--minutes",
        "--batch",
        "--micro-batch",
        "--seq",
        "--dtype",
        "--lr",
        "--warmup",
        "--min-lr",
        "--weight-decay",
        "--clip",
        "--optimizer",
        "--seed",
        "--threads",
        "--no-sync-accumulation",
        "--reshard-after-forward",
        "--prefetch",
        "--backend",
        "--timeout",
        "--log-json",
        "--profile",
        "--config",
        "--skip-nonfinite"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string(flag) + " "));
  }
}

TEST_F(TrainCommand, HelpShowsThePresetsAndTheDefaultsThatAllShare) {
  const ProcessResult result = run(alone({"--help"}));
  for (const char* line :
       {"\n  seed    SimpleTransformer, 9.87 M parameters, one fixed batch\n",
        "\n  mid     SimpleTransformer, ",
        "\n  bytes   decoder over bytes, ",
        "\n  words   decoder over GPT-2's tokens, ",
        "\n  tiny    decoder over bytes, 0.1 M parameters, ",
        "(default: bytes)",
        "(default: fp32)",
        "(default: 300)",
        "(default: auto)"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("Tokens per sequence (default")));
}

} // namespace
} // namespace fsdp::testing
