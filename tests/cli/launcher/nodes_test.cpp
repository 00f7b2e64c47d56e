// Several nodes: two and more launchers on one machine.

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// A port that was free a moment ago, below those of outgoing connections.
int quiet_port() {
  int port = 20000 + getpid() % 10000;
  while (port_is_listening(port))
    ++port;
  return port;
}

class Nodes : public LauncherTest {
 protected:
  ChildProcess& start_node(
      int node,
      int num_nodes,
      int ranks,
      int port,
      const std::vector<std::string>& actions) {
    return start(fsdp_run(
        {"-n",
         std::to_string(ranks),
         "--nnodes",
         std::to_string(num_nodes),
         "--node-rank",
         std::to_string(node),
         "--master-addr",
         "127.0.0.1",
         "--master-port",
         std::to_string(port)},
        actions));
  }
};

TEST_F(Nodes, NumberTheRanksNodeByNode) {
  const int port = quiet_port();
  // The first node is the last to come.
  ChildProcess& second = start_node(1, 2, 2, port, {"variables", "meet"});
  ChildProcess& first = start_node(0, 2, 2, port, {"variables", "meet"});
  EXPECT_EQ(finish(first).exit_code, 0) << first.err();
  EXPECT_EQ(finish(second).exit_code, 0) << second.err();
  const std::string end =
      " WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 "
      "MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
      std::to_string(port);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(
        (rank < 2 ? first : second).out(),
        HasSubstr(
            "[rank " + std::to_string(rank) + "] RANK=" + std::to_string(rank) +
            " LOCAL_RANK=" + std::to_string(rank % 2) + end));
}

TEST_F(Nodes, MeetWithOneRankOnEachOfFour) {
  const int port = quiet_port();
  std::vector<ChildProcess*> nodes;
  for (int node = 0; node < 4; ++node)
    nodes.push_back(&start_node(node, 4, 1, port, {"meet"}));
  for (ChildProcess* node : nodes)
    EXPECT_EQ(finish(*node).exit_code, 0) << node->err();
}

TEST_F(Nodes, EndWithTheRankThatFailedOnOneOfThem) {
  const int port = quiet_port();
  const std::vector<std::string> actions{"meet", "3:exit=3", "follow=text"};
  ChildProcess& first = start_node(0, 2, 2, port, actions);
  ChildProcess& second = start_node(1, 2, 2, port, actions);
  const ProcessResult on_first = finish(first);
  const ProcessResult on_second = finish(second);
  EXPECT_EQ(on_second.exit_code, 3);
  EXPECT_THAT(
      on_second.err, ContainsRegex("rank 3 \\(pid [0-9]+\\) failed first"));
  // Node 0 has but followers, which say whom they blame.
  EXPECT_EQ(on_first.exit_code, 1);
  EXPECT_THAT(
      on_first.err,
      ContainsRegex(
          "fsdp run: rank [01] \\(pid [0-9]+\\) gave up because of another "
          "rank: exit code 1"));
  EXPECT_THAT(
      on_first.err,
      ContainsRegex("fsdp run: \\| \\[rank [01]\\] rank [12] has exited"));
  EXPECT_LT(on_first.elapsed, 5s);
}

TEST_F(Nodes, NameABusyPortOfTheFirst) {
  const int port = quiet_port();
  ChildProcess& holder = start_node(0, 2, 1, port, {"print=here", "wait"});
  ASSERT_TRUE(holder.wait_for_output("here", 10s));
  const ProcessResult result = finish(start_node(0, 2, 1, port, {"print=no"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_LT(result.elapsed, 3s);
  EXPECT_THAT(
      result.err,
      HasSubstr(
          "port " + std::to_string(port) + " of 127.0.0.1 is in use by "));
  holder.send_signal(SIGTERM);
  EXPECT_EQ(finish(holder).exit_code, 143);
}

} // namespace
} // namespace fsdp::testing
