#include "env/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/error.h"

extern char** environ;

namespace fsdp {
namespace {

using Variables = std::map<std::string, std::string>;

/// This process's environment becomes `variables`, and is restored.
class WithVariables {
 public:
  explicit WithVariables(const Variables& variables) {
    for (char** entry = environ; *entry; ++entry)
      before_.emplace_back(*entry);
    clearenv();
    for (const auto& [name, value] : variables)
      setenv(name.c_str(), value.c_str(), 1);
  }
  ~WithVariables() {
    clearenv();
    for (std::string& entry : before_)
      if (const size_t equals = entry.find('='); equals != std::string::npos)
        setenv(
            entry.substr(0, equals).c_str(),
            entry.substr(equals + 1).c_str(),
            1);
  }

 private:
  std::vector<std::string> before_;
};

LaunchEnvironment read(const Variables& variables) {
  const WithVariables environment(variables);
  return read_launch_environment();
}

/// Text of the ConfigError, or "" if there is none.
std::string error(const Variables& variables) {
  const WithVariables environment(variables);
  try {
    read_launch_environment();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

Variables operator+(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more)
    variables[name] = value;
  return variables;
}

Variables operator-(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void expect_place(
    const LaunchEnvironment& env,
    const std::string& launcher,
    int rank,
    int world_size,
    int local_rank,
    int local_world_size) {
  EXPECT_EQ(env.launcher, launcher);
  EXPECT_EQ(env.rank, rank);
  EXPECT_EQ(env.world_size, world_size);
  EXPECT_EQ(env.local_rank, local_rank);
  EXPECT_EQ(env.local_world_size, local_world_size);
}

const Variables kPlain{
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "10.0.0.1"},
    {"MASTER_PORT", "29500"}};

constexpr const char* kTogether =
    "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT together, or start the program with fsdp run";

TEST(LaunchEnvironment, IsAWorldOfOneWithoutALauncher) {
  const LaunchEnvironment env = read({});
  expect_place(env, "none", 0, 1, 0, 1);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, 0);
  EXPECT_FALSE(env.master_listen_fd);
  EXPECT_FALSE(env.store_is_external);
}

TEST(LaunchEnvironment, ReadsTheVariablesOfFsdpRunAndTorchrun) {
  const LaunchEnvironment by_hand = read(kPlain);
  expect_place(by_hand, "environment", 3, 4, 1, 2);
  EXPECT_EQ(by_hand.master_addr, "10.0.0.1");
  EXPECT_EQ(by_hand.master_port, 29500);
  EXPECT_FALSE(by_hand.store_is_external);

  expect_place(
      read(kPlain + Variables{{"FSDP_RUN", "1"}}), "fsdp run", 3, 4, 1, 2);

  const LaunchEnvironment torchrun = read(
      kPlain + Variables{
                   {"TORCHELASTIC_RUN_ID", "none"},
                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  expect_place(torchrun, "torchrun", 3, 4, 1, 2);
  EXPECT_TRUE(torchrun.store_is_external);
  EXPECT_FALSE(
      read(kPlain + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}})
          .store_is_external);
}

TEST(LaunchEnvironment, OfOneRankByHandNeedsNoMore) {
  expect_place(
      read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "environment", 0, 1, 0, 1);
}

TEST(LaunchEnvironment, KeepsTheMasterAddressAsGiven) {
  for (const char* address :
       {"127.0.0.9", "::1", "node-7.cluster", "localhost"})
    EXPECT_EQ(
        read(kPlain + Variables{{"MASTER_ADDR", address}}).master_addr,
        address);
}

TEST(LaunchEnvironment, NamesTheVariableThatIsMissing) {
  for (const char* name :
       {"WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT"})
    EXPECT_EQ(
        error(kPlain - name),
        std::string(name) + " is not set, though RANK is: " + kTogether);
  EXPECT_EQ(
      error(kPlain - "RANK"),
      std::string("RANK is not set, though WORLD_SIZE is: ") + kTogether);
}

TEST(LaunchEnvironment, SaysWhatAVariableHoldsAndWhatItShould) {
  const std::vector<std::pair<Variables, std::string>> cases{
      {{{"RANK", "4"}},
       "RANK is \"4\": expected a whole number from 0 to 3, as WORLD_SIZE is "
       "4"},
      {{{"RANK", "-1"}},
       "RANK is \"-1\": expected a whole number from 0 to 3, as WORLD_SIZE is "
       "4"},
      {{{"RANK", "1x"}},
       "RANK is \"1x\": expected a whole number from 0 to 3, as WORLD_SIZE is "
       "4"},
      {{{"RANK", ""}},
       "RANK is \"\": expected a whole number from 0 to 3, as WORLD_SIZE is 4"},
      {{{"WORLD_SIZE", "0"}},
       "WORLD_SIZE is \"0\": expected a whole number of at least 1"},
      {{{"WORLD_SIZE", "99999999999"}},
       "WORLD_SIZE is \"99999999999\": expected a whole number from 1 to "
       "2147483647"},
      {{{"LOCAL_RANK", "2"}},
       "LOCAL_RANK is \"2\": expected a whole number from 0 to 1, as "
       "LOCAL_WORLD_SIZE is 2"},
      {{{"LOCAL_WORLD_SIZE", "5"}},
       "LOCAL_WORLD_SIZE is \"5\": expected a whole number from 1 to 4"},
      {{{"MASTER_ADDR", ""}},
       "MASTER_ADDR is \"\": expected an address or a host name"},
      {{{"MASTER_PORT", "0"}},
       "MASTER_PORT is \"0\": expected a whole number from 1 to 65535"},
      {{{"MASTER_PORT", "70000"}},
       "MASTER_PORT is \"70000\": expected a whole number from 1 to 65535"},
      {{{"TORCHELASTIC_USE_AGENT_STORE", "yes"}},
       "TORCHELASTIC_USE_AGENT_STORE is \"yes\": expected True or False"}};
  for (const auto& [change, text] : cases)
    EXPECT_EQ(error(kPlain + change), text);
  EXPECT_EQ(
      error(
          kPlain +
          Variables{{"RANK", "0"}, {"FSDP_MASTER_LISTEN_FD", "three"}}),
      "FSDP_MASTER_LISTEN_FD is \"three\": expected the number of an open "
      "descriptor");
}

// The listener.

class Listener : public ::testing::Test {
 protected:
  void SetUp() override {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  void TearDown() override { close(fd_); }

  LaunchEnvironment read_as(int rank, int port) const {
    return read(
        kPlain + Variables{
                     {"RANK", std::to_string(rank)},
                     {"MASTER_PORT", std::to_string(port)},
                     {"FSDP_MASTER_LISTEN_FD", std::to_string(fd_)}});
  }

  int fd_ = -1;
  int port_ = 0;
};

TEST_F(Listener, IsAdoptedByRankZeroAlone) {
  ASSERT_EQ(listen(fd_, 1), 0);
  EXPECT_EQ(read_as(0, port_).master_listen_fd, fd_);
  EXPECT_EQ(read_as(1, port_).master_listen_fd, std::nullopt);
}

TEST_F(Listener, ThatIsNoneOnThisPortIsLeftAlone) {
  EXPECT_EQ(read_as(0, port_).master_listen_fd, std::nullopt); // no listen yet
  ASSERT_EQ(listen(fd_, 1), 0);
  EXPECT_EQ(read_as(0, port_ + 1).master_listen_fd, std::nullopt);
  EXPECT_EQ(
      read(kPlain + Variables{{"RANK", "0"}, {"FSDP_MASTER_LISTEN_FD", "1023"}})
          .master_listen_fd,
      std::nullopt);
}

// mpirun.

const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "3"},
    {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
    {"PMIX_NAMESPACE", "2000027649"}};

constexpr const char* kKeepMpi =
    "start the program with mpirun and keep all variables that it sets";

TEST(OpenMpi, GivesThePlaceAndAPortThatFollowsFromTheJob) {
  const LaunchEnvironment env = read(kOpenMpi);
  expect_place(env, "mpirun", 3, 4, 3, 4);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, read(kOpenMpi).master_port);
  std::set<int> ports;
  for (int job = 0; job < 100; ++job) {
    const int port =
        read(kOpenMpi + Variables{{"PMIX_NAMESPACE", std::to_string(job)}})
            .master_port;
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 32000);
    ports.insert(port);
  }
  EXPECT_GT(ports.size(), 95u);
}

TEST(OpenMpi, TakesAGivenMaster) {
  const LaunchEnvironment env = read(
      kOpenMpi + Variables{{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(env.master_addr, "n1");
  EXPECT_EQ(env.master_port, 1234);
}

TEST(OpenMpi, ComesAfterVariablesSetByHand) {
  EXPECT_EQ(read(kOpenMpi + kPlain).launcher, "environment");
}

TEST(OpenMpi, OnSeveralHostsNeedsTheAddress) {
  const Variables hosts = kOpenMpi + Variables{
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(
      error(hosts),
      "MASTER_ADDR is not set and this host runs 2 of 4 ranks: set it to the "
      "address of the host of rank 0 for every rank (mpirun -x "
      "MASTER_ADDR=...)");
  const Variables named = hosts + Variables{{"MASTER_ADDR", "n1"}};
  EXPECT_EQ(read(named).master_addr, "n1");
  EXPECT_EQ(
      error(named - "PMIX_NAMESPACE"),
      "MASTER_PORT is not set and this host runs 2 of 4 ranks: set it to a "
      "free "
      "port there for every rank (mpirun -x MASTER_PORT=...)");
}

TEST(OpenMpi, NamesWhatIsMissingOrWrong) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE"})
    EXPECT_EQ(
        error(kOpenMpi - name),
        std::string(name) +
            " is not set, though OMPI_COMM_WORLD_RANK is: " + kKeepMpi);
  EXPECT_EQ(
      error(kOpenMpi + Variables{{"OMPI_COMM_WORLD_RANK", "4"}}),
      "OMPI_COMM_WORLD_RANK is \"4\": expected a whole number from 0 to 3, as "
      "OMPI_COMM_WORLD_SIZE is 4");
}

const Variables kMpich{
    {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"},
    {"MPI_LOCALRANKID", "1"},
    {"MPI_LOCALNRANKS", "2"}};

TEST(Mpich, GivesThePlaceAndAPortThatFollowsFromTheParent) {
  const LaunchEnvironment env = read(kMpich);
  expect_place(env, "mpirun", 1, 2, 1, 2);
  EXPECT_GE(env.master_port, 20000);
  EXPECT_LT(env.master_port, 32000);
  EXPECT_EQ(
      env.master_port,
      read(kMpich + Variables{{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}})
          .master_port);
}

TEST(Mpich, NamesWhatIsMissing) {
  EXPECT_EQ(
      error(kMpich - "PMI_SIZE"),
      std::string("PMI_SIZE is not set, though PMI_RANK is: ") + kKeepMpi);
  EXPECT_EQ(
      error(kMpich - "MPI_LOCALRANKID"),
      std::string(
          "MPI_LOCALRANKID or PMI_LOCAL_RANK is not set, though PMI_RANK "
          "is: ") +
          kKeepMpi);
}

// srun.

const Variables kSlurm{
    {"SLURM_PROCID", "3"},
    {"SLURM_NTASKS", "5"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "2"},
    {"SLURM_TASKS_PER_NODE", "2,1(x3)"},
    {"SLURM_JOB_ID", "77"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_JOB_NODELIST", "node[01-03,07]"}};

TEST(Srun, GivesThePlaceTheFirstHostAndAPortThatFollowsFromTheStep) {
  const LaunchEnvironment env = read(kSlurm);
  expect_place(env, "srun", 3, 5, 0, 1);
  EXPECT_EQ(env.master_addr, "node01");
  EXPECT_GE(env.master_port, 20000);
  EXPECT_LT(env.master_port, 32000);
  EXPECT_NE(
      env.master_port,
      read(kSlurm + Variables{{"SLURM_STEP_ID", "1"}}).master_port);
  EXPECT_EQ(
      env.master_port,
      read(kSlurm + Variables{{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}})
          .master_port);
}

TEST(Srun, GoesByTheStepWhereItDiffersFromTheJob) {
  const LaunchEnvironment env = read(
      kSlurm + Variables{
                   {"SLURM_PROCID", "1"},
                   {"SLURM_STEP_NUM_TASKS", "2"},
                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                   {"SLURM_STEP_NODELIST", "node[02-03]"},
                   {"SLURM_NODEID", "1"}});
  expect_place(env, "srun", 1, 2, 0, 1);
  EXPECT_EQ(env.master_addr, "node02");
}

TEST(Srun, LeavesABatchScriptAWorldOfOne) {
  expect_place(read(kSlurm - "SLURM_STEP_ID"), "none", 0, 1, 0, 1);
}

TEST(Srun, GivesWayToMpichThatUsesItToStartItsProxies) {
  EXPECT_EQ(read(kSlurm + kMpich).launcher, "mpirun");
  // srun with Slurm's own PMI sets PMI_RANK too.
  EXPECT_EQ(
      read(kSlurm + Variables{{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}}).launcher,
      "srun");
}

TEST(Srun, NamesWhatIsMissingOrWrong) {
  const std::string keep =
      " is not set, though SLURM_PROCID is: start the program with srun and "
      "keep all variables that it sets";
  EXPECT_EQ(error(kSlurm - "SLURM_NTASKS"), "SLURM_NTASKS" + keep);
  EXPECT_EQ(error(kSlurm - "SLURM_LOCALID"), "SLURM_LOCALID" + keep);
  EXPECT_EQ(error(kSlurm - "SLURM_NODEID"), "SLURM_NODEID" + keep);
  EXPECT_EQ(error(kSlurm - "SLURM_JOB_ID"), "SLURM_JOB_ID" + keep);
  EXPECT_EQ(
      error(kSlurm - "SLURM_TASKS_PER_NODE"),
      "SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE" + keep);
  EXPECT_EQ(
      error(kSlurm - "SLURM_JOB_NODELIST"),
      "SLURM_STEP_NODELIST or SLURM_JOB_NODELIST" + keep);
  const std::vector<std::pair<Variables, std::string>> cases{
      {{{"SLURM_PROCID", "5"}},
       "SLURM_PROCID is \"5\": expected a whole number from 0 to 4, as "
       "SLURM_NTASKS is 5"},
      {{{"SLURM_LOCALID", "1"}},
       "SLURM_LOCALID is \"1\": expected a whole number from 0 to 0, as the "
       "number of tasks here is 1"},
      {{{"SLURM_NODEID", "4"}},
       "SLURM_NODEID is \"4\": expected a whole number from 0 to 3, as the "
       "number of nodes in SLURM_TASKS_PER_NODE is 4"},
      {{{"SLURM_TASKS_PER_NODE", "2(x3"}},
       "SLURM_TASKS_PER_NODE is \"2(x3\": expected counts such as 2(x3),1"},
      {{{"SLURM_TASKS_PER_NODE", "2,1,6"}},
       "SLURM_TASKS_PER_NODE is \"2,1,6\": expected at most 5 tasks on a node"},
      {{{"SLURM_JOB_NODELIST", "node[01-"}},
       "SLURM_JOB_NODELIST is \"node[01-\": expected a list of hosts such as "
       "node[01-03,07]"}};
  for (const auto& [change, text] : cases)
    EXPECT_EQ(error(kSlurm + change), text);
}

} // namespace
} // namespace fsdp
