// The loop of preset `seed` on 1, 2 and 4 processes: the same 30 losses.

#include <cmath>
#include <string>
#include <vector>

#include "train_fixture.h"

namespace fsdp::testing {
namespace {

class SeedLoop : public TrainTest {
 protected:
  std::vector<double> losses_on(int size) {
    const std::string log = path(std::to_string(size) + ".json");
    const ProcessResult result =
        run(on_ranks(size, {"--preset", "seed", "--log-json", log}), 580s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    std::vector<double> losses;
    for (const auto& step : read_log(log)) {
      losses.push_back(step.at("loss"));
    }
    return losses;
  }
};

TEST_F(SeedLoop, GivesTheSameThirtyLossesOnOneTwoAndFourRanks) {
  const std::vector<double> alone = losses_on(1);
  ASSERT_EQ(alone.size(), 30U);
  EXPECT_NEAR(alone.front(), 9.35, 0.15);
  const double reduction = 1 - alone.back() / alone.front();
  EXPECT_GE(reduction, 0.75);
  EXPECT_LE(reduction, 0.85);
  for (const int size : {2, 4}) {
    const std::vector<double> losses = losses_on(size);
    ASSERT_EQ(losses.size(), 30U);
    for (std::size_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(losses[i], alone[i], 5e-6 * alone[i])
          << "step " << i + 1 << " on " << size << " ranks";
    }
  }
}

} // namespace
} // namespace fsdp::testing
