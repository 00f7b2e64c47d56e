// A rank that fails ends the job, and the report names it and no follower.

#include <csignal>
#include <fstream>

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Failure : public LauncherTest {
 protected:
  /// What the launcher says of the first failure.
  static std::string headline(const ProcessResult& result) {
    for (const std::string& line : lines_after("fsdp run: ", result.err))
      if (line.find(" failed first: ") != std::string::npos)
        return line;
    return "";
  }

  static void expect_first(
      const ProcessResult& result,
      int rank,
      const std::string& how,
      int status) {
    EXPECT_EQ(result.exit_code, status);
    EXPECT_THAT(
        headline(result),
        ContainsRegex("^rank " + std::to_string(rank) + " \\(pid [0-9]+\\)"))
        << result.err;
    EXPECT_THAT(headline(result), ::testing::EndsWith("failed first: " + how));
    EXPECT_LT(result.elapsed, 5s);
  }
};

// Every kind of failure beside every kind of follower.
struct Case {
  const char* name;
  int rank;
  const char* action;
  const char* how;
  int status;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class FirstFailure : public Failure,
                     public ::testing::WithParamInterface<Case> {};

TEST_P(FirstFailure, IsNamedAndGivesTheStatusWhateverTheOthersDo) {
  const Case& c = GetParam();
  for (const char* others :
       {"wait", "follow=text", "follow=75", "follow=uncaught"}) {
    const ProcessResult result = run(fsdp_run(
        {"-n", "4"},
        {"meet", std::to_string(c.rank) + ":" + c.action, others}));
    SCOPED_TRACE(others);
    expect_first(result, c.rank, c.how, c.status);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    FirstFailure,
    ::testing::Values(
        Case{"Segfault", 2, "segfault", "killed by SIGSEGV (signal 11)", 139},
        Case{"ExitCode", 1, "exit=3", "exit code 3", 3},
        Case{"Kill", 0, "kill=9", "killed by SIGKILL (signal 9)", 137},
        Case{"Throw", 3, "throw=the matrix is singular", "exit code 1", 1},
        Case{
            "Uncaught", 3, "uncaught=oh", "killed by SIGABRT (signal 6)", 134}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_F(Failure, MarksTheRanksThatTheLauncherStopped) {
  const ProcessResult result = run(
      fsdp_run({"-n", "4"}, {"3:print=bye", "3:exit=0", "1:exit=3", "wait"}));
  const auto said = lines_after("fsdp run: ", result.err);
  EXPECT_THAT(said, Contains("rank 1 failed, stopping the others"));
  EXPECT_THAT(said, Contains("rank 0: stopped by the launcher (SIGTERM)"));
  EXPECT_THAT(said, Contains("rank 2: stopped by the launcher (SIGTERM)"));
  EXPECT_THAT(said, Contains(::testing::StartsWith("rank 3: ")));
}

TEST_F(Failure, OfARankThatPeersFollowLeavesThemMarkedAsLater) {
  const ProcessResult result =
      run(fsdp_run({"-n", "3"}, {"meet", "1:exit=3", "0:follow=text", "wait"}));
  expect_first(result, 1, "exit code 3", 3);
  EXPECT_THAT(
      lines_after("fsdp run: rank 0: ", result.err),
      Contains("failed after it (exit code 1)"));
}

TEST_F(Failure, KillsARankThatDoesNotHeedSigterm) {
  const ProcessResult result =
      run(fsdp_run({"-n", "3"}, {"ignore", "meet", "1:exit=3", "wait"}));
  expect_first(result, 1, "exit code 3", 3);
  EXPECT_GE(result.elapsed, 2s); // the grace
  const auto said = lines_after("fsdp run: ", result.err);
  EXPECT_THAT(said, Contains("rank 0: stopped by the launcher (SIGKILL)"));
  EXPECT_THAT(said, Contains("rank 2: stopped by the launcher (SIGKILL)"));
}

TEST_F(Failure, ShowsTheCauseAndNotTheFramesOfABacktrace) {
  std::vector<std::string> actions{"print=what happened"};
  for (int i = 0; i < 40; ++i) {
    actions.push_back("print=  frame #" + std::to_string(i) + ": f() (0x1)");
  }
  actions.push_back("exit=3");
  const ProcessResult result = run(fsdp_run({"-n", "1"}, actions));
  EXPECT_THAT(result.out, HasSubstr("[rank 0]   frame #39: f() (0x1)\n"));
  const auto said = lines_after("fsdp run: ", result.err);
  EXPECT_THAT(said, Contains("| what happened"));
  EXPECT_THAT(result.err, Not(HasSubstr("frame #")));
}

TEST_F(Failure, LetsARankEndItsWorkAtSigterm) {
  const ProcessResult result =
      run(fsdp_run({"-n", "2"}, {"catch=5", "meet", "1:exit=3", "wait"}));
  expect_first(result, 1, "exit code 3", 3);
  EXPECT_THAT(result.out, HasSubstr("[rank 0] caught\n"));
  EXPECT_THAT(
      lines_after("fsdp run: ", result.err),
      Contains("rank 0: ended after the launcher's SIGTERM (exit code 5)"));
}

TEST_F(Failure, OfTwoAtOnceNamesOneAndMarksTheOther) {
  for (int i = 0; i < 5; ++i) {
    const std::string go = path("go" + std::to_string(i));
    ChildProcess& child = start(fsdp_run(
        {"-n", "4"},
        {"meet",
         "1:file=" + go,
         "2:file=" + go,
         "1:exit=3",
         "2:exit=4",
         "wait"}));
    ASSERT_TRUE(child.wait_for_output("met", 10s));
    std::ofstream(go.c_str()) << "";
    const ProcessResult result = finish(child);
    const int first = result.exit_code == 3 ? 1 : 2;
    expect_first(
        result,
        first,
        first == 1 ? "exit code 3" : "exit code 4",
        first == 1 ? 3 : 4);
  }
}

TEST_F(Failure, OfTwoAtOnceNamesTheOneThatASignalKilled) {
  for (int i = 0; i < 5; ++i) {
    const std::string go = path("go" + std::to_string(i));
    ChildProcess& child = start(fsdp_run(
        {"-n", "4"},
        {"meet",
         "1:file=" + go,
         "2:file=" + go,
         "1:exit=3",
         "2:segfault",
         "wait"}));
    ASSERT_TRUE(child.wait_for_output("met", 10s));
    std::ofstream(go.c_str()) << "";
    expect_first(finish(child), 2, "killed by SIGSEGV (signal 11)", 139);
  }
}

TEST_F(Failure, ShowsTheLastTwentyLinesOfThatRankAlone) {
  const ProcessResult result = run(fsdp_run(
      {"-n", "2"},
      {"0:print=innocent",
       "1:lines=30",
       "meet",
       "1:throw=the matrix is singular",
       "wait"}));
  const auto shown = lines_after("fsdp run: | ", result.err);
  ASSERT_EQ(shown.size(), 20u);
  EXPECT_EQ(shown.front(), "line 13");
  EXPECT_EQ(shown[17], "line 30");
  // "met" and the message come by two pipes.
  EXPECT_THAT(shown, Contains("met"));
  EXPECT_THAT(shown, Contains("error: the matrix is singular"));
}

TEST_F(Failure, OfASingleRankIsReportedToo) {
  const ProcessResult result = run(fsdp_run({}, {"print=hello", "exit=9"}));
  expect_first(result, 0, "exit code 9", 9);
  EXPECT_THAT(result.err, Not(HasSubstr("stopping the others")));
}

TEST_F(Failure, LeavesNoGrandchildBehind) {
  for (const char* action : {"1:exit=3", "1:segfault", "1:kill=9"}) {
    const ProcessResult result = run(fsdp_run(
        {"-n", "2"}, {"variables", "child", "daemon", "meet", action, "wait"}));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(result.elapsed, 5s);
  }
}

TEST_F(Failure, OfTheLastRankCountsThoughTheOthersHadEnded) {
  const std::string go = path("go");
  const ProcessResult result = run(fsdp_run(
      {"-n", "3"}, {"meet", "0:touch=" + go, "2:file=" + go, "2:exit=6"}));
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(
      lines_after("fsdp run: rank 0: ", result.err),
      Contains("had ended normally"));
}

} // namespace
} // namespace fsdp::testing
