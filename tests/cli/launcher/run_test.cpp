// `fsdp run` when all goes well: what the ranks find, where their output goes.

#include <fstream>

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class Run : public LauncherTest {};

TEST_F(Run, TellsEachRankWhoItIs) {
  for (const int n : {1, 2, 3, 4, 8}) {
    const ProcessResult result =
        run(fsdp_run({"-n", std::to_string(n)}, {"variables", "environment"}),
            {.env = {{"OMP_NUM_THREADS", "5"}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    const std::string port = word_after("MASTER_PORT=", result.out);
    for (int r = 0; r < n; ++r) {
      const std::string rank = std::to_string(r);
      const std::string size = std::to_string(n);
      EXPECT_THAT(
          lines_after("[rank " + rank + "] ", result.out),
          ElementsAre(
              "RANK=" + rank + " LOCAL_RANK=" + rank + " WORLD_SIZE=" + size +
                  " LOCAL_WORLD_SIZE=" + size +
                  " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port +
                  " OMP_NUM_THREADS=5",
              "fsdp run: rank " + rank + "/" + size + " local " + rank + "/" +
                  size + " master 127.0.0.1:" + port + " listener " +
                  (r == 0 ? "yes" : "no") + " external no"));
    }
  }
}

TEST_F(Run, LetsTheRanksMeetAtThePort) {
  for (const int n : {1, 2, 3, 4, 8}) {
    const ProcessResult result =
        run(fsdp_run({"-n", std::to_string(n)}, {"variables", "meet"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (int r = 0; r < n; ++r)
      EXPECT_THAT(
          result.out, HasSubstr("[rank " + std::to_string(r) + "] met\n"));
  }
}

TEST_F(Run, HandsTheListenerToRankZeroAlone) {
  // A shell between the launcher and the program lists its descriptors.
  const ProcessResult result = run(
      {FSDP_PROGRAM,
       "run",
       "-n",
       "3",
       "--",
       "sh",
       "-c",
       "for f in /proc/$$/fd/*; do readlink $f; done; true"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const int rank : {0, 1, 2}) {
    int sockets = 0;
    for (const std::string& line :
         lines_after("[rank " + std::to_string(rank) + "] ", result.out))
      sockets += line.starts_with("socket:") ? 1 : 0;
    EXPECT_EQ(sockets, rank == 0 ? 1 : 0) << "rank " << rank;
  }
}

TEST_F(Run, KeepsStandardOutputAndErrorApart) {
  const ProcessResult result =
      run(fsdp_run({"-n", "2"}, {"print=to out", "1:complain=to err"}));
  EXPECT_THAT(
      lines_of(result.out),
      UnorderedElementsAre("[rank 0] to out", "[rank 1] to out"));
  EXPECT_THAT(lines_after("[rank ", result.err), ElementsAre("1] to err"));
}

TEST_F(Run, PassesOnALastLineWithoutItsEnd) {
  const ProcessResult result =
      run(fsdp_run({"-n", "2"}, {"0:raw=half a line", "1:raw=one\\nand half"}));
  EXPECT_THAT(
      lines_of(result.out),
      UnorderedElementsAre(
          "[rank 0] half a line", "[rank 1] one", "[rank 1] and half"));
}

TEST_F(Run, LosesNothingOfALargeOutputAndWritesCompleteLogs) {
  const int kMegabytes = 8;
  const std::string logs = path("logs/of/job");
  const ProcessResult result =
      run(fsdp_run(
              {"-n", "2", "--log-dir", logs},
              {"megabytes=" + std::to_string(kMegabytes),
               "raw=end",
               "complain=a complaint"}),
          {},
          60s);
  EXPECT_EQ(result.exit_code, 0);
  for (const int rank : {0, 1}) {
    const std::string line(1023, static_cast<char>('a' + rank));
    const auto lines =
        lines_after("[rank " + std::to_string(rank) + "] ", result.out);
    ASSERT_EQ(lines.size(), kMegabytes * 1024 + 1);
    EXPECT_EQ(lines.front(), line);
    EXPECT_EQ(lines[lines.size() - 2], line);
    EXPECT_EQ(lines.back(), "end");
    const std::string log =
        read_text(logs + "/rank-" + std::to_string(rank) + ".log");
    EXPECT_EQ(
        log.size(), kMegabytes * 1024 * 1024 + 3 + strlen("a complaint\n"));
    EXPECT_TRUE(log.starts_with(line + "\n"));
    EXPECT_TRUE(log.ends_with("a complaint\n"));
  }
}

TEST_F(Run, DoesNotSlowARankWhoseOutputIsRead) {
  // Rank 0 ends only after rank 1 has written far more than pipes hold.
  const std::string done = path("done");
  const ProcessResult result = run(fsdp_run(
      {"-n", "2"},
      {"1:megabytes=4", "1:touch=" + done, "0:file=" + done, "print=end"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(lines_after("[rank 1] ", result.out).size(), 4 * 1024 + 1u);
}

TEST_F(Run, CutsAnEndlessLineInPieces) {
  const std::string text(100'000, 'x');
  const ProcessResult result =
      run(fsdp_run({"-n", "1"}, {"raw=" + text, "raw=\\nend\\n"}));
  const auto lines = lines_after("[rank 0] ", result.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].size(), 65536u);
  EXPECT_EQ(lines[0] + lines[1], text);
  EXPECT_EQ(lines[2], "end");
}

TEST_F(Run, GivesStandardInputToTheFirstRank) {
  std::ofstream(path("input")) << "a line for the program\n";
  const std::string program = FSDP_PROGRAM;
  const std::string rank_program = FSDP_RANK_PROGRAM;
  const ProcessResult result = run(
      {"sh",
       "-c",
       "exec " + program + " run -n 2 -- " + rank_program + " input < " +
           path("input")});
  EXPECT_THAT(
      lines_of(result.out),
      ::testing::IsSupersetOf(
          {"[rank 0] a line for the program", "[rank 1] no input"}));
}

TEST_F(Run, StopsWhenNobodyReadsItsOutput) {
  const ProcessResult result = run(
      {"bash",
       "-c",
       std::string(FSDP_PROGRAM) + " run -n 2 -- " + FSDP_RANK_PROGRAM +
           " megabytes=64 wait | head -n 1; echo status ${PIPESTATUS[0]}"});
  EXPECT_THAT(result.out, HasSubstr("status 141\n")) << result.err;
  EXPECT_LT(result.elapsed, 10s);
}

TEST_F(Run, SaysWhyItsOutputCannotBeWritten) {
  const std::string start = std::string(FSDP_PROGRAM) + " run -n 2 -- ";
  // Ranks that go on, and ranks that end at once.
  for (const std::string program :
       {FSDP_RANK_PROGRAM " megabytes=1 wait", "echo text"}) {
    const ProcessResult result =
        run({"sh", "-c", "exec " + start + program + " > /dev/full"},
            {.env = {{"OMP_NUM_THREADS", "1"}}});
    EXPECT_EQ(
        result.err,
        "fsdp run: standard output cannot be written: No space left on device; "
        "send it elsewhere\n");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_LT(result.elapsed, 10s);
  }
  // A rank's own failure goes first.
  const ProcessResult failed =
      run({"sh", "-c", "exec " + start + "sh -c 'exit 3' > /dev/full"});
  EXPECT_EQ(failed.exit_code, 3) << failed.err;
}

TEST_F(Run, ALogAtTheLimitOnFileSizesEndsThatLogOnly) {
  const std::string logs = path("logs");
  const ProcessResult result =
      run({"bash",
           "-c",
           "ulimit -f 1; exec " + std::string(FSDP_PROGRAM) +
               " run --log-dir " + logs +
               " -- bash -c 'printf %3000s; echo; "
               "echo the end'"},
          {.env = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] the end\n"));
  EXPECT_THAT(
      result.err,
      HasSubstr("fsdp run: the log of rank 0 ends here: File too large\n"));
  EXPECT_EQ(std::filesystem::file_size(logs + "/rank-0.log"), 1024U);
}

TEST_F(Run, RanksKeepTheSignalOfTheLimitOnFileSizes) {
  const ProcessResult result = run(
      {"bash",
       "-c",
       "exec " + std::string(FSDP_PROGRAM) +
           " run -- bash -c 'ulimit -f 1; exec head -c 3000 /dev/zero > " +
           path("file") + "'"});
  EXPECT_EQ(result.exit_code, 128 + SIGXFSZ) << result.err;
}

TEST_F(Run, RunsAProgramFoundInPathWithItsArgumentsUntouched) {
  const ProcessResult result = run(
      {FSDP_PROGRAM,
       "run",
       "--",
       "printf",
       "%s|",
       "--",
       "-n",
       "[a,b]",
       "",
       "%"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[rank 0] --|-n|[a,b]||%|\n");
}

TEST_F(Run, LeavesAProcessThatWasThereBeforeAlone) {
  // The shell has a child of its own when the launcher takes its place.
  ChildProcess& child = start(
      {"bash",
       "-c",
       "sleep 1000 & echo other $!; exec " + std::string(FSDP_PROGRAM) +
           " run -n 2 -- " + FSDP_RANK_PROGRAM + " print=hello"});
  const ProcessResult result = child.wait(30s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank 1] hello"));
  const pid_t other = std::stoi(word_after("other ", result.out));
  EXPECT_THAT(child.survivors(), ElementsAre(other));
}

TEST_F(Run, EndsProcessesThatOutliveSuccessfulRanks) {
  const ProcessResult result =
      run(fsdp_run({"-n", "2"}, {"child", "daemon", "variables"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.elapsed, 5s);
}

class Terminal : public LauncherTest {};

TEST_F(Terminal, BelongsToASingleRank) {
  ChildProcess& child = start(
      {FSDP_PROGRAM, "run", "--", "sh", "-c", "tty; test -t 1 && echo it is"},
      {.env = {{"OMP_NUM_THREADS", "1"}}, .terminal = true});
  const ProcessResult result = finish(child);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, ::testing::StartsWith("/dev/"));
  EXPECT_THAT(result.out, HasSubstr("\r\nit is\r\n"));
}

TEST_F(Terminal, SendsItsInterruptOnceToASingleRank) {
  ChildProcess& child = start(
      fsdp_run({}, {"catch=7", "print=ready", "wait"}), {.terminal = true});
  ASSERT_TRUE(child.wait_for_output("ready", 10s));
  child.press('\x03');
  const ProcessResult result = finish(child);
  EXPECT_EQ(result.exit_code, 7) << result.out;
  EXPECT_THAT(result.out, HasSubstr("caught"));
}

TEST_F(Terminal, SendsItsInterruptOnceToEachOfSeveralRanks) {
  ChildProcess& child = start(
      fsdp_run({"-n", "2"}, {"catch=7", "meet", "wait"}), {.terminal = true});
  ASSERT_TRUE(child.wait_for_output("[rank 0] met", 10s));
  ASSERT_TRUE(child.wait_for_output("[rank 1] met", 10s));
  child.press('\x03');
  const ProcessResult result = finish(child);
  EXPECT_EQ(result.exit_code, 130) << result.out;
  EXPECT_THAT(result.out, HasSubstr("[rank 0] caught\r\n"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] caught\r\n"));
}

TEST_F(Terminal, ShowsALiveLineOfTheFirstRankBelowTheOthers) {
  const std::string first = path("first");
  const std::string second = path("second");
  ChildProcess& child = start(
      fsdp_run(
          {"-n", "2"},
          {"0:raw=\\rstep 1",
           "0:file=" + first,
           "1:file=" + first,
           "1:print=other",
           "0:file=" + second,
           "0:raw=\\rstep 2 done\\n"}),
      {.env = {{"OMP_NUM_THREADS", "1"}}, .terminal = true});
  ASSERT_TRUE(child.wait_for_output("[rank 0] step 1", 10s));
  std::ofstream(first.c_str()) << "";
  ASSERT_TRUE(child.wait_for_output("[rank 1] other", 10s));
  std::ofstream(second.c_str()) << "";
  const ProcessResult result = finish(child);
  const std::string erase = "\r\x1b[K";
  EXPECT_EQ(
      result.out,
      erase + "[rank 0] step 1" +                            // drawn
          erase + "[rank 1] other\r\n" + "[rank 0] step 1" + // and again
          erase + "[rank 0] step 2 done\r\n" + "[rank 0] step 1" + erase);
}

TEST_F(Terminal, TellsTheFirstRankThatItMayDrawALiveLine) {
  const std::vector<std::string> args{
      FSDP_PROGRAM,
      "run",
      "-n",
      "2",
      "--",
      "sh",
      "-c",
      "echo $FSDP_LIVE_LINE."};
  ChildProcess& child = start(args, {.terminal = true});
  EXPECT_THAT(finish(child).out, HasSubstr("[rank 0] 1.\r\n"));
  EXPECT_THAT(child.out(), HasSubstr("[rank 1] .\r\n"));
  EXPECT_THAT(run(args).out, HasSubstr("[rank 0] .\n"));
}

} // namespace
} // namespace fsdp::testing
