// Preset `bytes` on its default text: it learns, and bfloat16 learns as well.

#include <string>

#include "train_fixture.h"

namespace fsdp::testing {
namespace {

class Bytes : public TrainTest {
 protected:
  /// Validation loss after 300 steps.
  double validation_loss(const std::string& dtype) {
    const ProcessResult result =
        run(on_ranks(
                2,
                {"--preset",
                 "bytes",
                 "--steps",
                 "300",
                 "--batch",
                 "8",
                 "--dtype",
                 dtype,
                 "--evals",
                 "1",
                 "--sample",
                 "0"}),
            880s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    const std::string start = "step 300  validation loss ";
    const std::size_t at = result.out.find(start);
    EXPECT_NE(at, std::string::npos) << result.out;
    return at == std::string::npos
               ? 0
               : std::stod(result.out.substr(at + start.size()));
  }
};

TEST_F(Bytes, ThreeHundredStepsInBFloat16EndWhereFloat32Does) {
  const double exact = validation_loss("fp32");
  EXPECT_LT(exact, 2.2);
  EXPECT_NEAR(validation_loss("bf16"), exact, 0.02 * exact);
}

} // namespace
} // namespace fsdp::testing
