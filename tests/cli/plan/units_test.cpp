#include "cli/units.h"

#include <gmock/gmock.h>

#include "cli/table.h"
#include "fsdp/error.h"
#include "support/throws.h"

namespace fsdp::cli {
namespace {

using ::testing::Eq;
using ::testing::Optional;

TEST(ParseCount, ReadsWhatPeopleWrite) {
  EXPECT_THAT(parse_count("0"), Optional(Eq(0)));
  EXPECT_THAT(parse_count("9868560"), Optional(Eq(9'868'560)));
  EXPECT_THAT(parse_count("9223372036854775807"), Optional(Eq(INT64_MAX)));
  EXPECT_THAT(parse_count("7B"), Optional(Eq(7'000'000'000)));
  EXPECT_THAT(parse_count("1.5e9"), Optional(Eq(1'500'000'000)));
  EXPECT_THAT(parse_count("350M"), Optional(Eq(350'000'000)));
  EXPECT_THAT(parse_count("0.5k"), Optional(Eq(500)));
  EXPECT_THAT(parse_count("1T"), Optional(Eq(1'000'000'000'000)));
}

TEST(ParseCount, RefusesEverythingElse) {
  for (const char* text :
       {"",
        "-1",
        "-1e3",
        "seven",
        "7BB",
        "B",
        " 7",
        "7 B",
        "nan",
        "inf",
        "1e19",
        "9223372036854775808",
        "10000000T",
        "0x10",
        "+5"}) {
    EXPECT_FALSE(parse_count(text)) << text;
  }
}

TEST(ParseReal, TakesFiniteNumbers) {
  EXPECT_THAT(parse_real("-1.25"), Optional(Eq(-1.25)));
  for (const char* text : {"", "nan", "inf", "-inf", "1e999", "1,5", "1.5GB"}) {
    EXPECT_FALSE(parse_real(text)) << text;
  }
}

TEST(Units, HaveThreeDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(12'345), "12.3 kB");
  EXPECT_EQ(bytes_text(417'999'999), "418 MB");
  EXPECT_EQ(bytes_text(999.6e6), "1.00 GB");
  EXPECT_EQ(bytes_text(12.34e9), "12.3 GB");
  EXPECT_EQ(bytes_text(9.999e12), "10.0 TB");
  EXPECT_EQ(bytes_text(-2.5e9), "-2.50 GB");
  EXPECT_EQ(count_text(6.738e9), "6.74 B");
  EXPECT_EQ(count_text(512), "512");
  EXPECT_EQ(seconds_text(0.0012), "1.20 ms");
  EXPECT_EQ(seconds_text(35e-6), "35.0 us");
  EXPECT_EQ(seconds_text(2.1), "2.10 s");
}

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({"name", "of", "bytes"}, 2);
  table.add({"a", "weights", "1"});
  table.add({"longer", "", "1000"});
  EXPECT_EQ(
      table.text(),
      "  name    of       bytes\n"
      "  a       weights      1\n"
      "  longer            1000\n");
  EXPECT_EQ(
      testing::thrown_text<UsageError>([&] { table.add({"a"}); }),
      "a table of 3 columns got a row of 1");
}

} // namespace
} // namespace fsdp::cli
