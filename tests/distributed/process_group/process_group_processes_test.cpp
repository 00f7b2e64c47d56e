// Ranks as real processes, started by hand with the variables of a launcher.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/process.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::ChildProcess;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ProcessResult;
using ::testing::StartsWith;

/// Listens on a port that the system chooses, until destroyed.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, any, size) != 0 || listen(fd_, 16) != 0 ||
        getsockname(fd_, any, &size) != 0) {
      throw std::runtime_error("no free port");
    }
    port_ = ntohs(address.sin_port);
  }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  ~TakenPort() { close(fd_); }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

int free_port() {
  return TakenPort().port();
}

/// Where a job meets, and what its ranks do.
struct Job {
  std::string scenario;
  std::vector<std::string> arguments{};
  int size = 2;
  int port = free_port();
  std::string address = "127.0.0.1";
  std::map<std::string, std::optional<std::string>> env{};

  std::unique_ptr<ChildProcess> start(int rank) const {
    std::vector<std::string> command{FSDP_RANK_PROGRAM, scenario};
    command.insert(command.end(), arguments.begin(), arguments.end());
    auto variables = env;
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] =
        std::to_string(size);
    variables["MASTER_ADDR"] = address;
    variables["MASTER_PORT"] = std::to_string(port);
    return std::make_unique<ChildProcess>(
        command, testing::ProcessOptions{.env = variables});
  }

  std::vector<ProcessResult> run(const std::vector<int>& ranks) const {
    std::vector<std::unique_ptr<ChildProcess>> processes;
    for (const int rank : ranks) {
      processes.push_back(start(rank));
    }
    std::vector<ProcessResult> results;
    for (const auto& process : processes) {
      results.push_back(process->wait(60s));
    }
    return results;
  }

  std::vector<ProcessResult> run() const {
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.push_back(r);
    }
    return run(ranks);
  }
};

std::string place_of(const Job& job) {
  return job.address + ":" + std::to_string(job.port);
}

void expect_one_line(const ProcessResult& result, const std::string& line) {
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, line + "\n");
}

TEST(Processes, OfOneHostFormAWorldOverShm) {
  const auto results = Job{.scenario = "report_world", .size = 4}.run();
  for (int rank = 0; rank < 4; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.out, "shm " + std::to_string(rank) + "/4 sum 6\n");
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.exit_code, 0);
  }
}

TEST(Processes, WithoutShmFormAWorldOverGloo) {
  const auto results =
      Job{.scenario = "report_world",
          .size = 3,
          .env = {{"FSDP_DISABLE_SHM", "1"}}}
          .run();
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.out, "gloo " + std::to_string(rank) + "/3 sum 3\n");
    EXPECT_EQ(result.err, "");
  }
}

TEST(Processes, MayFormTheirWorldAgain) {
  for (const auto& result :
       Job{.scenario = "join_again", .arguments = {"backend=gloo"}}.run()) {
    EXPECT_THAT(result.out, EndsWith("/2 sum 1\nkept sum 1\n"));
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 5);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.exit_code, 0);
  }
}

TEST(Processes, UseTheStoreOfAnAgentThatIsNoRank) {
  Job job{
      .scenario = "report_world",
      .env = {
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "run"}}};
  ChildProcess agent(
      {FSDP_RANK_PROGRAM, "serve", "port=" + std::to_string(job.port)});
  ASSERT_TRUE(agent.wait_for_output("serving", 30s));
  // Restarted by the agent, the ranks find their earlier keys in the store.
  for (const char* restart : {"0", "1"}) {
    job.env["TORCHELASTIC_RESTART_COUNT"] = restart;
    for (const auto& result : job.run()) {
      EXPECT_THAT(result.out, EndsWith("/2 sum 1\n")) << result.err;
      EXPECT_EQ(result.err, "");
    }
  }
}

TEST(Processes, NameTheRanksThatDidNotCome) {
  Job job{
      .scenario = "report_world", .arguments = {"timeout_ms=2000"}, .size = 4};
  const auto results = job.run({0, 2});
  const std::string text = "ranks 1 and 3 of 4 did not join at " +
                           place_of(job) +
                           " within 2 s; start them, or raise the timeout";
  expect_one_line(results[0], "TimeoutError: [rank 0] " + text);
  expect_one_line(results[1], "TimeoutError: [rank 2] " + text);
  EXPECT_LT(results[0].elapsed, 10s);
}

TEST(Processes, SayThatRankZeroDoesNotAnswer) {
  Job job{.scenario = "report_world", .arguments = {"timeout_ms=700"}};
  const auto results = job.run({1});
  expect_one_line(
      results[0],
      "TimeoutError: [rank 1] rank 0 did not answer at " + place_of(job) +
          " within 700 ms; start it, correct MASTER_ADDR and MASTER_PORT, or "
          "raise the timeout");
  EXPECT_LT(results[0].elapsed, 10s);
}

TEST(Processes, SayThatThePortIsTaken) {
  const TakenPort taken;
  Job job{
      .scenario = "report_world",
      .arguments = {"timeout_ms=2000"},
      .port = taken.port()};
  expect_one_line(
      job.run({0})[0],
      "ConfigError: [rank 0] port " + std::to_string(taken.port()) +
          " of the master address 127.0.0.1 is in use by another program; "
          "choose a free MASTER_PORT");
}

TEST(Processes, SayThatWhatAnswersIsNoStore) {
  const TakenPort silent; // accepts connections, says nothing
  Job job{
      .scenario = "report_world",
      .arguments = {"timeout_ms=1500"},
      .port = silent.port()};
  const auto results = job.run({1});
  expect_one_line(
      results[0],
      "TimeoutError: [rank 1] no job store answered at " + place_of(job) +
          " within 1500 ms: another program listens there; correct "
          "MASTER_ADDR and MASTER_PORT");
  EXPECT_LT(results[0].elapsed, 10s);
}

TEST(Processes, NameAMasterThatCannotBeResolved) {
  Job job{
      .scenario = "report_world",
      .arguments = {"timeout_ms=700"},
      .address = "no-such-host.invalid"};
  const auto result = job.run({1})[0];
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("[rank 1] the master address 'no-such-host.invalid' c"),
          HasSubstr("not be resolved"),
          EndsWith(
              "set MASTER_ADDR to the name or address of rank 0's host\n")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST(Processes, RefuseARankOutsideTheWorld) {
  expect_one_line(
      Job{.scenario = "report_world"}.run({2})[0],
      "ConfigError: RANK is \"2\": expected a whole number from 0 to 1, as "
      "WORLD_SIZE is 2");
}

TEST(Processes, RefuseAnInterfaceThatIsNotThere) {
  const auto results =
      Job{.scenario = "report_world",
          .arguments = {"backend=gloo"},
          .env = {{"GLOO_SOCKET_IFNAME", "nic7"}}}
          .run();
  for (int rank = 0; rank < 2; ++rank) {
    expect_one_line(
        results[static_cast<std::size_t>(rank)],
        "ConfigError: [rank " + std::to_string(rank) +
            "] GLOO_SOCKET_IFNAME names 'nic7', which is no network interface "
            "of this host with an address; correct or unset it");
  }
}

class OneRankOfThree : public ::testing::TestWithParam<int> {
 protected:
  /// GLOO_SOCKET_IFNAME is set for one rank only.
  static std::vector<ProcessResult> run_with(const char* interface) {
    Job job{
        .scenario = "report_world", .arguments = {"backend=gloo"}, .size = 3};
    std::vector<std::unique_ptr<ChildProcess>> processes;
    for (int rank = 0; rank < 3; ++rank) {
      job.env.clear();
      if (rank == GetParam()) {
        job.env["GLOO_SOCKET_IFNAME"] = interface;
      }
      processes.push_back(job.start(rank));
    }
    std::vector<ProcessResult> results;
    for (const auto& process : processes) {
      results.push_back(process->wait(60s));
    }
    return results;
  }
};

TEST_P(OneRankOfThree, WithAWrongInterfaceIsNamedByAllWithinSeconds) {
  const auto results = run_with("nic7");
  const std::string text =
      "GLOO_SOCKET_IFNAME names 'nic7', which is no network interface of this "
      "host with an address; correct or unset it";
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    const std::string prefix = "[rank " + std::to_string(rank) + "] ";
    expect_one_line(
        result,
        rank == GetParam()
            ? "ConfigError: " + prefix + text
            : "PeerError: " + prefix + "group 'world' cannot connect: rank " +
                  std::to_string(GetParam()) + ": " + text);
    EXPECT_LT(result.elapsed, 10s);
  }
}

TEST_P(OneRankOfThree, MayBeToldItsInterface) {
  const auto results = run_with("lo");
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.out, "gloo " + std::to_string(rank) + "/3 sum 3\n");
    EXPECT_EQ(result.err, "");
    EXPECT_LT(result.elapsed, 10s);
  }
}

INSTANTIATE_TEST_SUITE_P(Gloo, OneRankOfThree, ::testing::Values(0, 1));

TEST(Processes, TakeTheMasterAddressAsGivenAndAskNoResolver) {
  Job job{
      .scenario = "report_look_ups",
      .arguments = {"backend=gloo"},
      .address = "127.0.0.9"};
  for (const auto& result : job.run()) {
    EXPECT_THAT(result.out, EndsWith("reverse 0 forward 0\n"));
    EXPECT_EQ(result.err, "");
  }
  job.arguments = {"timeout_ms=700"};
  EXPECT_THAT(job.run({1})[0].err, HasSubstr(" at 127.0.0.9:"));
}

TEST(Processes, OverlappingGroupsRaiseNoFalseAlarm) {
  for (const char* backend : {"backend=gloo", "backend=shm"}) {
    const auto results =
        Job{.scenario = "overlap", .arguments = {backend}, .size = 4}.run();
    // 20 steps; rank 1 and 2 add 0 + 1 + 2 and 1 + 2 + 3, the others one of
    // the sums and their own rank.
    EXPECT_EQ(results[0].out, "total 60\n") << results[0].err;
    EXPECT_EQ(results[1].out, "total 180\n") << results[1].err;
    EXPECT_EQ(results[2].out, "total 180\n") << results[2].err;
    EXPECT_EQ(results[3].out, "total 180\n") << results[3].err;
    for (const auto& result : results) {
      EXPECT_EQ(result.err, "");
    }
  }
}

struct Loss {
  const char* when;
  int victim;
};

class LostRank : public ::testing::TestWithParam<Loss> {};

TEST_P(LostRank, IsNamedByAllOthersWithinSeconds) {
  const int victim = GetParam().victim;
  Job job{
      .scenario = "lose_a_rank",
      .arguments =
          {"backend=gloo",
           "victim=" + std::to_string(victim),
           std::string("when=") + GetParam().when},
      .size = 3};
  const auto results = job.run();
  for (int rank = 0; rank < 3; ++rank) {
    const auto& result = results[static_cast<std::size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL);
      continue;
    }
    const std::string text =
        "[rank " + std::to_string(rank) + "] rank " + std::to_string(victim) +
        " has died, and is waited for in all_gather(float32, 6000000 "
        "elements) for unit 'layers.3'; see its last output, and start the "
        "job again";
    expect_one_line(result, "PeerDiedError: " + text);
    EXPECT_THAT(result.out, EndsWith("again: " + text + "\n"));
    EXPECT_THAT(result.out, StartsWith("seconds "));
    EXPECT_LT(std::stod(result.out.substr(8)), 5.0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gloo,
    LostRank,
    ::testing::Values(
        Loss{"at once", 2},
        Loss{"between calls", 0},
        Loss{"amid data", 1},
        Loss{"amid data", 2}),
    [](const auto& tested) {
      std::string name =
          tested.param.when + std::to_string(tested.param.victim);
      std::erase(name, ' ');
      return name;
    });

TEST(Processes, NameARankThatStandsStillAtTheDeadline) {
  Job job{
      .scenario = "lose_a_rank",
      .arguments =
          {"backend=gloo", "victim=1", "when=stopped", "timeout_ms=3000"},
      .size = 3};
  const auto first = job.start(0);
  const auto stopped = job.start(1);
  const auto last = job.start(2);
  const std::string text =
      "timed out after 3 s in all_gather(float32, 6000000 elements) for unit "
      "'layers.3': rank 1 had not come; see what it did last, or raise the "
      "timeout, and start the job again";
  for (const auto& [process, rank] : {std::pair{&first, 0}, {&last, 2}}) {
    const ProcessResult result = (*process)->wait(30s);
    expect_one_line(
        result, "TimeoutError: [rank " + std::to_string(rank) + "] " + text);
  }
  stopped->send_signal(SIGKILL);
}

} // namespace
} // namespace fsdp
