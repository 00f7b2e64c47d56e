#include "launch/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

namespace fsdp::detail {
namespace {

RankEnd exited(int rank, int code) {
  RankEnd end;
  end.rank = rank;
  end.exit_code = code;
  return end;
}

RankEnd killed(int rank, int signal) {
  RankEnd end;
  end.rank = rank;
  end.signal = signal;
  return end;
}

RankEnd blaming(RankEnd end) {
  end.blames_peer = true;
  return end;
}

RankEnd stopped(RankEnd end) {
  end.after_stop = true;
  return end;
}

TEST(FirstFailure, IsNoneWhereAllEndedWell) {
  EXPECT_EQ(first_failure({}), std::nullopt);
  EXPECT_EQ(first_failure({exited(0, 0), exited(1, 0)}), std::nullopt);
}

TEST(FirstFailure, IsTheEarliestOfItsKind) {
  EXPECT_EQ(first_failure({exited(2, 0), exited(1, 3), exited(0, 1)}), 1u);
  EXPECT_EQ(first_failure({killed(2, SIGSEGV), killed(0, SIGKILL)}), 0u);
}

TEST(FirstFailure, IsASignalBeforeAnExit) {
  EXPECT_EQ(
      first_failure({exited(0, 1), exited(1, 1), killed(2, SIGKILL)}), 2u);
}

TEST(FirstFailure, TakesAnAbortForAnException) {
  EXPECT_EQ(first_failure({exited(1, 3), killed(0, SIGABRT)}), 0u);
  EXPECT_EQ(first_failure({killed(0, SIGABRT), exited(1, 3)}), 0u);
  EXPECT_EQ(first_failure({killed(0, SIGABRT), killed(1, SIGSEGV)}), 1u);
}

TEST(FirstFailure, IsARankThatBlamesAPeerOnlyIfAllDo) {
  EXPECT_EQ(first_failure({blaming(exited(0, 1)), exited(3, 1)}), 1u);
  EXPECT_EQ(first_failure({blaming(exited(0, 1)), blaming(exited(3, 1))}), 0u);
}

TEST(FirstFailure, IsNoRankThatTheLauncherStopped) {
  EXPECT_EQ(first_failure({exited(1, 3), stopped(killed(0, SIGTERM))}), 0u);
}

TEST(BlamesPeer, GoesByTheExitCodeForIt) {
  EXPECT_TRUE(blames_peer(exited(0, 75), {}));
  EXPECT_FALSE(blames_peer(exited(0, 1), {}));
  EXPECT_FALSE(blames_peer(exited(0, 0), {"[rank 0] rank 1 failed: x"}));
}

TEST(BlamesPeer, GoesByTheTypeOfAnUncaughtException) {
  const std::string start = "terminate called after throwing an instance of ";
  EXPECT_TRUE(blames_peer(killed(0, SIGABRT), {start + "'fsdp::PeerError'"}));
  EXPECT_TRUE(
      blames_peer(killed(0, SIGABRT), {start + "'fsdp::PeerDiedError'", "x"}));
  EXPECT_FALSE(
      blames_peer(killed(0, SIGABRT), {start + "'fsdp::MismatchError'"}));
}

TEST(BlamesPeer, GoesByTheTextOfAnErrorThatWasPrinted) {
  EXPECT_TRUE(blames_peer(
      exited(2, 1), {"error: [rank 2] rank 0 failed: the loss is not finite"}));
  // Another rank's words, or its own failure.
  EXPECT_FALSE(blames_peer(exited(0, 1), {"[rank 2] rank 0 failed: x"}));
  EXPECT_FALSE(blames_peer(exited(2, 1), {"[rank 2] the loss is not finite"}));
}

TEST(BlamesPeer, NeverExplainsADeathBySignal) {
  EXPECT_FALSE(blames_peer(killed(2, SIGSEGV), {"[rank 2] rank 0 failed: x"}));
}

TEST(DescribeEnd, NamesTheSignalOrTheCode) {
  EXPECT_EQ(describe_end(killed(0, SIGSEGV)), "killed by SIGSEGV (signal 11)");
  EXPECT_EQ(describe_end(exited(0, 3)), "exit code 3");
  EXPECT_EQ(
      signal_name(SIGRTMIN + 1), "signal " + std::to_string(SIGRTMIN + 1));
}

TEST(RankEnd, HasTheStatusThatShellsShow) {
  EXPECT_EQ(killed(0, SIGSEGV).status(), 139);
  EXPECT_EQ(killed(0, SIGKILL).status(), 137);
  EXPECT_EQ(exited(0, 3).status(), 3);
}

} // namespace
} // namespace fsdp::detail
