// Whole training jobs as real processes: started by every launcher, over shared
// memory and sockets, killed in the middle, and what is left behind.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/process.h"

namespace fsdp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Arguments = std::vector<std::string>;

Arguments joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class TrainingJob : public ::testing::Test {
 protected:
  void SetUp() override {
    shm_files_ = shared_memory_files();
    folder_ = std::filesystem::temp_directory_path() /
              ("fsdp-jobs-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream text(text_file());
    for (int i = 0; i < 4000; ++i) {
      text << "line " << i * i % 977 << " of the text\n";
    }
  }
  void TearDown() override {
    EXPECT_EQ(shared_memory_files(), shm_files_);
    std::filesystem::remove_all(folder_);
  }

  std::string text_file() const { return folder_ / "text.txt"; }
  std::string log_file(const std::string& name) const {
    return folder_ / (name + ".jsonl");
  }

  Arguments train(const Arguments& more) const {
    return joined(
        {FSDP_PROGRAM,
         "train",
         "--preset",
         "tiny",
         "--data",
         text_file(),
         "--batch",
         "8",
         "--seq",
         "16",
         "--evals",
         "0",
         "--sample",
         "0"},
        more);
  }
  static Arguments launch(const Arguments& flags, const Arguments& program) {
    return joined(
        joined(joined({FSDP_PROGRAM, "run"}, flags), {"--"}), program);
  }

  /// The losses of a job's steps, as its log has them.
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> values;
    std::ifstream file(log_file(name));
    for (std::string line; std::getline(file, line);) {
      values.push_back(nlohmann::json::parse(line).at("loss").get<double>());
    }
    return values;
  }
  std::vector<double> losses_of(
      const std::string& name,
      const Arguments& command,
      const ProcessOptions& options = {}) const {
    ChildProcess job(command, options);
    const ProcessResult result = job.wait(120s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(job.survivors(), IsEmpty());
    return losses(name);
  }

  std::set<std::string> shm_files_;
  std::filesystem::path folder_;
};

pid_t rank_process(const ChildProcess& job, int rank) {
  for (const pid_t pid :
       processes_with_variable("RANK=" + std::to_string(rank))) {
    for (const pid_t own : job.survivors()) {
      if (own == pid) {
        return pid;
      }
    }
  }
  ADD_FAILURE() << "no process of rank " << rank;
  return -1;
}

class KilledRank : public TrainingJob,
                   public ::testing::WithParamInterface<std::string> {};

TEST_P(KilledRank, EndsTheJobWithinSecondsAndIsNamed) {
  ChildProcess job(launch(
      {"-n", "4"}, train({"--steps", "1000000", "--backend", GetParam()})));
  ASSERT_TRUE(job.wait_for_output("step 1 ", 60s)) << job.err();
  const auto killed_at = SteadyClock::now();
  ASSERT_EQ(kill(rank_process(job, 2), SIGKILL), 0);
  const ProcessResult result = job.wait(20s);
  EXPECT_LT(SteadyClock::now() - killed_at, 5s);
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_THAT(result.err, HasSubstr("rank 2"));
  EXPECT_THAT(result.err, HasSubstr("SIGKILL"));
  EXPECT_THAT(job.survivors(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    KilledRank,
    ::testing::Values("shm", "gloo"),
    [](const auto& backend) { return backend.param; });

TEST_F(TrainingJob, KilledInTheMiddleOverAndOverLeavesNothingBehind) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    ChildProcess job(launch({"-n", "2"}, train({"--steps", "1000000"})));
    ASSERT_TRUE(job.wait_for_output("step 1 ", 60s)) << job.err();
    const pid_t first = rank_process(job, 0);
    const pid_t second = rank_process(job, 1);
    kill(first, SIGKILL);
    kill(second, SIGKILL);
    EXPECT_EQ(job.wait(20s).exit_code, 137);
    EXPECT_THAT(job.survivors(), IsEmpty());
    EXPECT_EQ(shared_memory_files(), shm_files_);
  }
  EXPECT_EQ(
      losses_of(
          "clean",
          launch(
              {"-n", "2"},
              train({"--steps", "3", "--log-json", log_file("clean")})))
          .size(),
      3u);
}

TEST_F(TrainingJob, SeveralHostsGiveTheBitsOfOne) {
  const auto one_host = losses_of(
      "one",
      launch(
          {"-n", "4"}, train({"--steps", "4", "--log-json", log_file("one")})));
  ASSERT_EQ(one_host.size(), 4u);

  const int port = 20000 + getpid() % 10000;
  ASSERT_FALSE(port_is_listening(port));
  const Arguments nodes{
      "-n",
      "2",
      "--nnodes",
      "2",
      "--master-addr",
      "127.0.0.1",
      "--master-port",
      std::to_string(port),
      "--node-rank"};
  const auto program = train({"--steps", "4", "--log-json", log_file("two")});
  // Without shared memory between them, as on two machines.
  const ProcessOptions apart{.env = {{"FSDP_DISABLE_SHM", "1"}}};
  ChildProcess other(launch(joined(nodes, {"1"}), program), apart);
  const auto two_hosts =
      losses_of("two", launch(joined(nodes, {"0"}), program), apart);
  EXPECT_EQ(other.wait(60s).exit_code, 0);
  EXPECT_EQ(two_hosts, one_host);
  EXPECT_FALSE(port_is_listening(port));
}

#ifdef FSDP_TORCHRUN
TEST_F(TrainingJob, TorchrunStartsTheSameJob) {
  const auto own = losses_of(
      "own",
      launch(
          {"-n", "2"}, train({"--steps", "3", "--log-json", log_file("own")})));
  const auto others = losses_of(
      "torchrun",
      joined(
          {FSDP_TORCHRUN, "--no-python", "--standalone", "--nproc-per-node=2"},
          train({"--steps", "3", "--log-json", log_file("torchrun")})));
  EXPECT_EQ(others, own);
}
#endif

#ifdef FSDP_MPIRUN
TEST_F(TrainingJob, MpirunStartsTheSameJob) {
  const auto own = losses_of(
      "own",
      launch(
          {"-n", "2"}, train({"--steps", "3", "--log-json", log_file("own")})));
  const auto others = losses_of(
      "mpirun",
      joined(
          {FSDP_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2"},
          train({"--steps", "3", "--log-json", log_file("mpirun")})));
  EXPECT_EQ(others, own);
}
#endif

TEST_F(TrainingJob, RunsAloneAsAWorldOfOne) {
  EXPECT_EQ(
      losses_of(
          "alone", train({"--steps", "3", "--log-json", log_file("alone")}))
          .size(),
      3u);
}

} // namespace
} // namespace fsdp::testing
