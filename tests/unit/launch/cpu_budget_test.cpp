#include "launch/cpu_budget.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace fsdp::detail {
namespace {

namespace fs = std::filesystem;

/// A root folder with /proc/self/{cgroup,mountinfo} and control groups.
class CgroupCpuLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            ("fsdp_cpu_budget_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void put_v2(const std::string& group, const std::string& shown = "/") const {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo",
        "20 1 8:1 / / rw - ext4 /dev/root rw\n"
        "30 20 0:26 " +
            shown +
            " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }

  fs::path root_;
};

TEST_F(CgroupCpuLimit, IsNoneWithoutControlGroups) {
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
  put("proc/self/cgroup", "0::/\n");
  put("proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/root rw\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
}

TEST_F(CgroupCpuLimit, ReadsTheQuotaOfVersion2) {
  put_v2("/job");
  put("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 1.5);
  put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
}

TEST_F(CgroupCpuLimit, IsTheTightestUpToTheRoot) {
  put_v2("/user/job/step");
  put("sys/fs/cgroup/user/job/step/cpu.max", "400000 100000\n");
  put("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/user/cpu.max", "300000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 3.0);
}

TEST_F(CgroupCpuLimit, OfAContainerIsAtTheRootOfItsMount) {
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  put_v2("/");
  EXPECT_EQ(cgroup_cpu_limit(root_), 2.0);
  // The host's names, but a mount that shows the container's group.
  put_v2("/docker/abc", "/docker/abc");
  EXPECT_EQ(cgroup_cpu_limit(root_), 2.0);
  put_v2("/docker/abc/inner", "/docker/abc");
  put("sys/fs/cgroup/inner/cpu.max", "100000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 1.0);
  put_v2("/../other");
  EXPECT_EQ(cgroup_cpu_limit(root_), 2.0);
}

TEST_F(CgroupCpuLimit, ReadsTheQuotaOfVersion1) {
  put("proc/self/cgroup", "5:cpuset:/c\n4:cpu,cpuacct:/job\n0::/\n");
  put("proc/self/mountinfo",
      "30 20 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
      "31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup "
      "rw,cpu,cpuacct\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 0.5);
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
}

TEST(ThreadsPerRank, AreCoresOverRanksButAtLeastOne) {
  for (const auto& [ranks, threads] : {std::pair{1, 2}, {2, 1}, {4, 1}, {8, 1}})
    EXPECT_EQ(threads_per_rank(2, std::nullopt, ranks), threads);
  EXPECT_EQ(threads_per_rank(64, std::nullopt, 3), 21);
}

TEST(ThreadsPerRank, GoByTheLimitOfTheContainerNotByTheHost) {
  EXPECT_EQ(threads_per_rank(64, 8.0, 2), 4);
  EXPECT_EQ(threads_per_rank(64, 7.9, 2), 3);
  EXPECT_EQ(threads_per_rank(64, 0.5, 1), 1);
  EXPECT_EQ(threads_per_rank(4, 100.0, 2), 2);
}

TEST(AffinityCores, FollowTheMask) {
  cpu_set_t before{};
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(affinity_cores(), CPU_COUNT(&before));
  cpu_set_t one{};
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before))
      CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(affinity_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

} // namespace
} // namespace fsdp::detail
