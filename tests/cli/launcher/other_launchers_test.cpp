// The same program under other launchers, which really run.

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::UnorderedElementsAre;

class OtherLaunchers : public LauncherTest {
 protected:
  /// What the ranks said of themselves, without the port.
  static std::vector<std::string> reports(const ProcessResult& result) {
    std::vector<std::string> found;
    std::set<std::string> ports;
    for (std::string line : lines_of(result.out)) {
      const size_t colon = line.rfind(':');
      const size_t end = line.find(' ', colon);
      ports.insert(line.substr(colon + 1, end - colon - 1));
      found.push_back(line.erase(colon, end - colon));
    }
    EXPECT_EQ(ports.size(), 1u) << "every rank needs the same port";
    EXPECT_GE(std::stoi(*ports.begin()), 1024);
    return found;
  }
};

#ifdef FSDP_MPIRUN
TEST_F(OtherLaunchers, MpirunIsUnderstood) {
  // More ranks than cores, also as root; Open MPI 4 and 5 differ in the name.
  const ProcessOptions options{
      .env = {
          {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
          {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}}};
  for (const int n : {1, 2, 3, 8}) {
    const ProcessResult result =
        run({FSDP_MPIRUN,
             "-n",
             std::to_string(n),
             FSDP_RANK_PROGRAM,
             "environment"},
            options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> expected;
    for (int r = 0; r < n; ++r) {
      const std::string of = std::to_string(r) + "/" + std::to_string(n);
      expected.push_back(
          "mpirun: rank " + of + " local " + of +
          " master 127.0.0.1 listener no external no");
    }
    EXPECT_THAT(
        reports(result), ::testing::UnorderedElementsAreArray(expected));
  }
}
#endif

#ifdef FSDP_TORCHRUN
TEST_F(OtherLaunchers, TorchrunIsUnderstood) {
  const ProcessResult result =
      run({FSDP_TORCHRUN,
           "--standalone",
           "--nproc-per-node=2",
           "--no-python",
           FSDP_RANK_PROGRAM,
           "environment"},
          {},
          60s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      reports(result),
      UnorderedElementsAre(
          "torchrun: rank 0/2 local 0/2 master localhost listener no external "
          "yes",
          "torchrun: rank 1/2 local 1/2 master localhost listener no external "
          "yes"));
}
#endif

TEST_F(OtherLaunchers, NoneIsAWorldOfOne) {
  const ProcessResult result = run({FSDP_RANK_PROGRAM, "environment"});
  EXPECT_EQ(
      result.out,
      "none: rank 0/1 local 0/1 master 127.0.0.1:0 listener no external no\n");
}

} // namespace
} // namespace fsdp::testing
