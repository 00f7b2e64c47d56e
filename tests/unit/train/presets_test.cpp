#include "train/presets.h"

#include <gtest/gtest.h>

#include "fsdp/error.h"

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

} // namespace
} // namespace fsdp
