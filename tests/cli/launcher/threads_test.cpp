// OMP_NUM_THREADS: usable cores / ranks, unless the user chose.

#include <sched.h>

#include <algorithm>

#include "cli/launcher/launcher_fixture.h"
#include "launch/cpu_budget.h"

namespace fsdp::testing {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

class Threads : public LauncherTest {
 protected:
  static std::vector<std::string> chosen(const ProcessResult& result) {
    std::vector<std::string> values;
    for (const std::string& line : lines_of(result.out))
      values.push_back(word_after("OMP_NUM_THREADS=", line));
    return values;
  }

  static ProcessOptions with(std::optional<std::string> threads) {
    return {.env = {{"OMP_NUM_THREADS", std::move(threads)}}};
  }
};

/// Leaves the process two cores, where the machine has them.
void use_two_cores() {
  cpu_set_t all{};
  cpu_set_t two{};
  sched_getaffinity(0, sizeof(all), &all);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu)
    if (CPU_ISSET(cpu, &all))
      CPU_SET(cpu, &two);
  sched_setaffinity(0, sizeof(two), &two);
}

TEST_F(Threads, AreUsableCoresOverRanksAndSaidOnce) {
  const double cores = std::min<double>(
      {2.0,
       static_cast<double>(detail::affinity_cores()),
       detail::cgroup_cpu_limit().value_or(2)});
  for (const int n : {1, 2, 4, 8}) {
    ProcessOptions options = with(std::nullopt);
    options.before_exec = use_two_cores;
    const ProcessResult result =
        run(fsdp_run({"-n", std::to_string(n)}, {"variables"}), options);
    const std::string expected =
        std::to_string(std::max(1, static_cast<int>(cores / n)));
    EXPECT_THAT(chosen(result), SizeIs(n));
    EXPECT_THAT(chosen(result), Each(expected));
    EXPECT_THAT(lines_of(result.err), SizeIs(1));
    EXPECT_TRUE(result.err.starts_with(
        "fsdp run: OMP_NUM_THREADS=" + expected +
        " for each rank (ranks here: " + std::to_string(n) +
        ", usable cores: "))
        << result.err;
  }
}

TEST_F(Threads, TheUsersOwnChoiceWinsInSilence) {
  for (const int n : {1, 2, 4, 8}) {
    const ProcessResult result =
        run(fsdp_run({"-n", std::to_string(n)}, {"variables"}), with("3"));
    EXPECT_THAT(chosen(result), SizeIs(n));
    EXPECT_THAT(chosen(result), Each("3"));
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(Threads, OfTheCallersShellStayAsTheyWere) {
  const ProcessResult result =
      run({"bash",
           "-c",
           std::string(FSDP_PROGRAM) + " run -n 2 -- true; env | grep -c -E " +
               "'^(OMP_NUM_THREADS|RANK|WORLD_SIZE|MASTER_PORT|FSDP_RUN|" +
               "FSDP_DEFAULT_THREADS)='"},
          with(std::nullopt));
  EXPECT_EQ(result.out, "0\n");
}

} // namespace
} // namespace fsdp::testing
