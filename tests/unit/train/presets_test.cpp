#include "train/presets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fsdp/error.h"
#include "train/nearest.h"

namespace fsdp {
namespace {

TEST(Presets, UnknownNameListsTheValidOnesAndTheNearest) {
  try {
    find_preset("Byte");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "--preset 'Byte' is unknown: use one of seed, mid, bytes, words, tiny; "
        "the "
        "nearest is 'bytes'");
  }
}

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
