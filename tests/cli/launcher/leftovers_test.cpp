// Whatever ends the launcher, no process stays behind.

#include <csignal>
#include <fstream>

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Leftovers : public LauncherTest {
 protected:
  /// Four ranks that ignore SIGTERM, with what `actions` starts, all met.
  ChildProcess& start_job(std::vector<std::string> actions, int ranks = 4) {
    std::vector<std::string> all{"ignore", "variables"};
    all.insert(all.end(), actions.begin(), actions.end());
    all.insert(all.end(), {"meet", "wait"});
    ChildProcess& child = start(fsdp_run({"-n", std::to_string(ranks)}, all));
    for (int r = 0; r < ranks; ++r)
      EXPECT_TRUE(
          child.wait_for_output("[rank " + std::to_string(r) + "] met", 20s));
    return child;
  }

  static pid_t guardian_of(const ChildProcess& launcher) {
    for (const pid_t pid : descendants(launcher.pid()))
      if (process_state(pid)->second == launcher.pid())
        return pid;
    return -1;
  }

  static void expect_all_gone_within_two_seconds(ChildProcess& child) {
    EXPECT_TRUE(wait_until([&] { return child.survivors().empty(); }, 2s))
        << child.survivors().size() << " processes go on";
    const int port = std::stoi(word_after("MASTER_PORT=", child.out()));
    EXPECT_FALSE(port_is_listening(port));
  }
};

TEST_F(Leftovers, NoneAfterTheLauncherIsKilled) {
  const std::vector<std::vector<std::string>> kinds{
      {}, {"child"}, {"daemon"}, {"child", "daemon", "daemon"}};
  const std::vector<size_t> processes{4, 8, 8, 16};
  for (size_t i = 0; i < kinds.size(); ++i) {
    ChildProcess& child = start_job(kinds[i]);
    // With the launcher and the guardian.
    EXPECT_EQ(child.survivors().size(), processes[i] + 2);
    child.send_signal(SIGKILL);
    expect_all_gone_within_two_seconds(child);
    EXPECT_EQ(child.wait(1s).signal, SIGKILL);
  }
}

TEST_F(Leftovers, NoneAfterTheLauncherIsKilledAtAnyMoment) {
  for (int i = 0; i < 40; ++i) {
    ChildProcess& child = start(
        fsdp_run({"-n", "3"}, {"ignore", "child", "daemon", "meet", "wait"}));
    const auto moment = SteadyClock::now() + i * 2ms;
    wait_until([&] { return SteadyClock::now() >= moment; }, 1s);
    child.send_signal(SIGKILL);
    EXPECT_TRUE(wait_until([&] { return child.survivors().empty(); }, 2s));
  }
}

TEST_F(Leftovers, NoneAfterTheLauncherIsKilledWhileItsOutputIsStuck) {
  ChildProcess& child = start(fsdp_run(
      {"-n", "2"}, {"ignore", "daemon", "variables", "meet", "megabytes=64"}));
  ASSERT_TRUE(child.wait_for_output("met", 10s));
  // Nobody reads on, so the ranks come to wait for their pipes.
  child.send_signal(SIGKILL);
  expect_all_gone_within_two_seconds(child);
}

TEST_F(Leftovers, NoneAfterTheStoppedLauncherIsKilled) {
  ChildProcess& child = start_job({"daemon"}, 2);
  child.send_signal(SIGSTOP);
  child.send_signal(SIGKILL);
  expect_all_gone_within_two_seconds(child);
}

TEST_F(Leftovers, NoneAfterTheGuardianIsKilled) {
  ChildProcess& child = start_job({"child", "daemon"});
  kill(guardian_of(child), SIGKILL);
  const ProcessResult result = finish(child);
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(
      lines_after("fsdp run: the guardian", result.err),
      Contains(" of the ranks was killed by SIGKILL; all ranks were ended"));
}

TEST_F(Leftovers, OfAKilledLauncherFreeTheirPort) {
  ChildProcess& child = start_job({"daemon"}, 2);
  const std::string port = word_after("MASTER_PORT=", child.out());
  child.send_signal(SIGKILL);
  expect_all_gone_within_two_seconds(child);
  const ProcessResult again =
      run(fsdp_run({"-n", "2", "--master-port", port}, {"meet"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

class Signals : public Leftovers {};

TEST_F(Signals, ReachAllRanksAndGiveTheStatus) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ChildProcess& child =
        start(fsdp_run({"-n", "3"}, {"variables", "meet", "wait"}));
    for (const char* rank : {"0", "1", "2"})
      ASSERT_TRUE(
          child.wait_for_output(std::string("[rank ") + rank + "] met", 10s));
    child.send_signal(signal);
    const ProcessResult result = finish(child);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_EQ(result.signal, 0); // an exit code, as the ranks have theirs
    EXPECT_LT(result.elapsed, 5s);
  }
}

TEST_F(Signals, LetTheRanksFinishTheirWork) {
  for (const int signal : {SIGINT, SIGTERM}) {
    ChildProcess& child =
        start(fsdp_run({"-n", "2"}, {"catch=0", "meet", "wait"}));
    for (const char* rank : {"0", "1"})
      ASSERT_TRUE(
          child.wait_for_output(std::string("[rank ") + rank + "] met", 10s));
    child.send_signal(signal);
    const ProcessResult result = finish(child);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.out, HasSubstr("[rank 0] caught\n"));
    EXPECT_THAT(result.out, HasSubstr("[rank 1] caught\n"));
  }
}

TEST_F(Signals, ASecondOneKills) {
  ChildProcess& child = start_job({"child", "daemon"}, 2);
  const auto start = SteadyClock::now();
  child.send_signal(SIGINT);
  // The launcher takes signals within 200 ms for one; the ranks ignore it.
  EXPECT_FALSE(wait_until([&] { return child.survivors().empty(); }, 400ms));
  child.send_signal(SIGINT);
  const ProcessResult result = finish(child);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_LT(SteadyClock::now() - start, 3s);
  EXPECT_THAT(
      lines_after("fsdp run: ", result.err),
      Contains("ended by SIGINT; ranks that went on were killed"));
}

TEST_F(Signals, OfTimeoutAreOneThoughItSendsTwo) {
  // `timeout` signals the launcher and then its whole process group.
  const ProcessResult result = run(
      {"timeout",
       "--signal=TERM",
       "3", // the ranks have met by then
       FSDP_PROGRAM,
       "run",
       "-n",
       "2",
       "--",
       FSDP_RANK_PROGRAM,
       "catch=0",
       "meet",
       "wait"});
  EXPECT_EQ(result.exit_code, 124); // timeout's own
  EXPECT_THAT(result.out, HasSubstr("[rank 0] caught\n"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] caught\n"));
}

TEST_F(Signals, SentTogetherAreOne) {
  ChildProcess& child =
      start(fsdp_run({"-n", "2"}, {"catch=0", "meet", "wait"}));
  for (const char* rank : {"0", "1"})
    ASSERT_TRUE(
        child.wait_for_output(std::string("[rank ") + rank + "] met", 10s));
  child.send_signal(SIGTERM);
  child.send_signal(SIGINT);
  const ProcessResult result = finish(child);
  EXPECT_THAT(result.out, HasSubstr("[rank 0] caught\n"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] caught\n"));
  EXPECT_THAT(
      lines_after("fsdp run: ", result.err),
      Contains(AnyOf("ended by SIGTERM", "ended by SIGINT")));
}

TEST_F(Signals, ToANohupLauncherLeaveHangupsIgnored) {
  ChildProcess& child = start(
      {"bash",
       "-c",
       "trap '' HUP; exec " + std::string(FSDP_PROGRAM) + " run -n 2 -- " +
           FSDP_RANK_PROGRAM + " meet file=" + path("go")});
  ASSERT_TRUE(child.wait_for_output("[rank 0] met", 10s));
  child.send_signal(SIGHUP);
  std::ofstream(path("go")) << "";
  EXPECT_EQ(finish(child).exit_code, 0);
}

} // namespace
} // namespace fsdp::testing
