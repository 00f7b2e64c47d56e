#include "core/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdp {
namespace {

TEST(NearestName, CountsEditsSwapsAndIgnoresCase) {
  const std::vector<std::string> names{
      "steps", "seed", "min-lr", "micro-batch"};
  EXPECT_EQ(nearest_name("step", names), "steps");
  EXPECT_EQ(nearest_name("sede", names), "seed");
  EXPECT_EQ(nearest_name("MIN_LR", names), "min-lr");
  EXPECT_EQ(nearest_name("microbatch", names), "micro-batch");
  EXPECT_EQ(nearest_name("x", {}), "");
}

} // namespace
} // namespace fsdp
