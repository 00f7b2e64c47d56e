#include "env/slurm_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(FirstSlurmHost, KeepsPlainNames) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("login.cluster-a,node[1-9]"), "login.cluster-a");
}

TEST(FirstSlurmHost, TakesTheFirstNumberOfEachBracketWithItsZeros) {
  EXPECT_EQ(first_slurm_host("node[01-03,07]"), "node01");
  EXPECT_EQ(first_slurm_host("node[007,009],login"), "node007");
  EXPECT_EQ(first_slurm_host("rack[2-3]node[10-11]"), "rack2node10");
  EXPECT_EQ(first_slurm_host("n[1-2]-ib"), "n1-ib");
}

TEST(FirstSlurmHost, RefusesWhatIsNoList) {
  for (const char* text :
       {"", ",a", "node[", "node[1-2", "node[]", "node[a-b]", "a b", "node]"})
    EXPECT_EQ(first_slurm_host(text), std::nullopt) << text;
}

TEST(SlurmTasksPerNode, RepeatsCounts) {
  EXPECT_THAT(slurm_tasks_per_node("4"), Optional(ElementsAre(4)));
  EXPECT_THAT(
      slurm_tasks_per_node("2(x3),1"), Optional(ElementsAre(2, 2, 2, 1)));
  EXPECT_THAT(
      slurm_tasks_per_node("1,16(x2)"), Optional(ElementsAre(1, 16, 16)));
}

TEST(SlurmTasksPerNode, RefusesWhatIsNoList) {
  for (const char* text :
       {"",
        "x",
        "2(x",
        "2(x3",
        "2(x0)",
        "2(x)",
        "0",
        "-1",
        "2,",
        ",2",
        "2(x99999999)"})
    EXPECT_EQ(slurm_tasks_per_node(text), std::nullopt) << text;
}

} // namespace
} // namespace fsdp::detail
