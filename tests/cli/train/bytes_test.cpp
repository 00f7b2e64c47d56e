// Preset `bytes` on its default text: how fast it learns, and that bfloat16
// learns as well.

#include <string>
#include <vector>

#include "train_fixture.h"

namespace fsdp::testing {
namespace {

class Bytes : public TrainTest {
 protected:
  /// The validation losses that a run on two ranks prints, in order.
  static std::vector<double> validation_losses(const Arguments& more) {
    Arguments options{"--preset", "bytes", "--sample", "0"};
    options.insert(options.end(), more.begin(), more.end());
    const ProcessResult result = run(on_ranks(2, options), 880s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    const std::string start = "  validation loss "; // of "step 100  val..."
    std::vector<double> losses;
    for (std::size_t at = result.out.find(start); at != std::string::npos;
         at = result.out.find(start, at + 1)) {
      losses.push_back(std::stod(result.out.substr(at + start.size())));
    }
    return losses;
  }
};

TEST_F(Bytes, ThreeHundredStepsInBFloat16EndWhereFloat32Does) {
  const auto last = [](const std::string& dtype) {
    const auto losses = validation_losses(
        {"--steps", "300", "--batch", "8", "--evals", "1", "--dtype", dtype});
    EXPECT_EQ(losses.size(), 1U);
    return losses.empty() ? 0 : losses.back();
  };
  const double exact = last("fp32");
  EXPECT_LT(exact, 2.2);
  EXPECT_NEAR(last("bf16"), exact, 0.02 * exact);
}

// A minute on two quiet cores. Steps and not minutes, so that a loaded machine
// comes as far.
TEST_F(Bytes, SixHundredStepsLearnAtTheSpeedThatIsDocumented) {
  const auto losses = validation_losses({"--steps", "600"});
  ASSERT_EQ(losses.size(), 6U);
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_LT(losses[i], losses[i - 1]) << "validation " << i + 1;
  }
  EXPECT_LT(losses.back(), 2.0); // 1.90 where this was written
}

} // namespace
} // namespace fsdp::testing
