// The command line of `fsdp` and of `fsdp run`: each mistake is one line.

#include <sys/stat.h>

#include <fstream>

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class CommandLine : public LauncherTest {
 protected:
  void expect_refused(
      std::vector<std::string> args, const std::string& line, int status = 2) {
    args.insert(args.begin(), FSDP_PROGRAM);
    const ProcessResult result = run(args);
    EXPECT_EQ(result.err, line + "\n");
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.exit_code, status);
  }
};

TEST_F(CommandLine, ShowsHelpAndVersion) {
  const ProcessResult help = run({FSDP_PROGRAM, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("run"));
  const ProcessResult version = run({FSDP_PROGRAM, "--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, "fsdp " FSDP_VERSION "\n");
  const ProcessResult run_help = run({FSDP_PROGRAM, "run", "--help"});
  EXPECT_EQ(run_help.exit_code, 0);
  for (const char* option :
       {"--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--log-dir",
        "-- program"})
    EXPECT_THAT(run_help.out, HasSubstr(option));
}

TEST_F(CommandLine, NamesTheNearestCommandAndOption) {
  expect_refused(
      {"rum"},
      "fsdp: unknown command rum: did you mean run? (see fsdp --help)");
  expect_refused(
      {"--verison"},
      "fsdp: unknown option --verison: did you mean --version? (see fsdp "
      "--help)");
  expect_refused(
      {"run", "--nodes", "2", "--", "true"},
      "fsdp run: unknown option --nodes: did you mean --nnodes? (see fsdp run "
      "--help)");
  expect_refused(
      {"run", "--Master-Port=3", "--", "true"},
      "fsdp run: unknown option --Master-Port: did you mean --master-port? "
      "(see "
      "fsdp run --help)");
}

TEST_F(CommandLine, ListsTheNamesWhereNoneIsNear) {
  const ProcessResult command = run({FSDP_PROGRAM, "checkpoint"});
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_THAT(
      command.err,
      StartsWith("fsdp: unknown command checkpoint: expected run"));
  const ProcessResult none = run({FSDP_PROGRAM});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, StartsWith("fsdp: no command: expected run"));
  expect_refused(
      {"run", "--restart-policy=x", "--", "true"},
      "fsdp run: unknown option --restart-policy: expected --help, --ranks, "
      "--nnodes, --node-rank, --master-addr, --master-port or --log-dir (see "
      "fsdp run --help)");
}

TEST_F(CommandLine, AsksForTheDashes) {
  expect_refused(
      {"run", "-n", "2"},
      "fsdp run: no program to run: expected fsdp run [options] -- program "
      "[arguments]");
  expect_refused(
      {"run", "-n", "2", "true", "--flag"},
      "fsdp run: unexpected \"true\": expected fsdp run [options] -- program "
      "[arguments]");
}

TEST_F(CommandLine, RefusesNumbersOutOfRange) {
  expect_refused(
      {"run", "-n", "0", "--", "true"},
      "fsdp run: -n is 0: expected 1 to 256 ranks on a node");
  expect_refused(
      {"run", "-n", "257", "--", "true"},
      "fsdp run: -n is 257: expected 1 to 256 ranks on a node");
  expect_refused(
      {"run", "--nnodes", "0", "--", "true"},
      "fsdp run: --nnodes is 0: expected at least 1 node");
  expect_refused(
      {"run", "--nnodes", "2", "--node-rank", "2", "--", "true"},
      "fsdp run: --node-rank is 2: expected 0 to 1, as --nnodes is 2");
  expect_refused(
      {"run", "--node-rank", "-1", "--", "true"},
      "fsdp run: --node-rank is -1: expected 0 to 0, as --nnodes is 1");
  expect_refused(
      {"run", "--master-port", "65536", "--", "true"},
      "fsdp run: --master-port is 65536: expected a port up to 65535, or 0 for "
      "a free one");
}

TEST_F(CommandLine, AsksForTheAddressOfSeveralNodes) {
  expect_refused(
      {"run", "--nnodes", "2", "--", "true"},
      "fsdp run: --master-addr is missing: expected the address of node 0, the "
      "same on every node, as --nnodes is 2");
  expect_refused(
      {"run", "--nnodes", "2", "--master-addr", "127.0.0.1", "--", "true"},
      "fsdp run: --master-port is missing: expected a free port of node 0, the "
      "same on every node, as --nnodes is 2");
  expect_refused(
      {"run",
       "--nnodes",
       "2",
       "--master-addr",
       "127.0.0.1",
       "--master-port",
       "0",
       "--",
       "true"},
      "fsdp run: --master-port is 0: expected a port from 1 to 65535, as "
      "--nnodes is 2");
  expect_refused(
      {"run", "--master-addr", "", "--", "true"},
      "fsdp run: --master-addr is empty: expected the address of node 0");
}

TEST_F(CommandLine, RefusesWhatIsNoNumber) {
  for (const char* option :
       {"-n", "--nnodes", "--node-rank", "--master-port"}) {
    const ProcessResult result =
        run({FSDP_PROGRAM, "run", option, "many", "--", "true"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(lines_of(result.err), ::testing::SizeIs(1));
    EXPECT_THAT(result.err, MatchesRegex("fsdp run: .*many.*\n"));
  }
}

TEST_F(CommandLine, NamesTheOptionOfWhatIsNoNumber) {
  expect_refused(
      {"run", "-n", "2.5", "--", "true"},
      "fsdp run: -n is \"2.5\": expected a whole number from 1 to 256");
  expect_refused(
      {"run", "-n", "", "--", "true"},
      "fsdp run: -n is \"\": expected a whole number from 1 to 256");
  expect_refused(
      {"run", "--nnodes", "99999999999", "--", "true"},
      "fsdp run: --nnodes is \"99999999999\": expected a whole number from 1 "
      "to 8388607");
  expect_refused(
      {"run", "--nnodes", "2147483647", "--", "true"},
      "fsdp run: --nnodes is 2147483647: expected at most 8388607 nodes");
  expect_refused(
      {"run", "--node-rank", "x", "--", "true"},
      "fsdp run: --node-rank is \"x\": expected a whole number of at least 0, "
      "below --nnodes");
  expect_refused(
      {"run", "--master-port", "http", "--", "true"},
      "fsdp run: --master-port is \"http\": expected a port up to 65535, or 0 "
      "for a free one");
  expect_refused(
      {"run", "--log-dir", "", "--", "true"},
      "fsdp run: --log-dir is \"\": expected the name of a folder");
  expect_refused(
      {"run", "--log-dir=", "-n", "2", "--", "true"},
      "fsdp run: --log-dir is \"\": expected the name of a folder");
}

TEST_F(CommandLine, TakesAnOptionOnce) {
  expect_refused(
      {"run", "-n", "2", "--ranks=3", "--", "true"},
      "fsdp run: -n is given 2 times ('2', '3'): expected it once at most");
}

TEST_F(CommandLine, SaysWhyAProgramCannotBeRun) {
  expect_refused(
      {"run", "--", "no-such-program"},
      "fsdp run: cannot find the program \"no-such-program\" in PATH",
      127);
  expect_refused(
      {"run", "--", "./no-such-program"},
      "fsdp run: cannot run \"./no-such-program\": No such file or directory",
      127);
  expect_refused(
      {"run", "--", "/tmp"},
      "fsdp run: cannot run \"/tmp\": Is a directory",
      126);
  std::ofstream(path("plain")) << "text\n";
  expect_refused(
      {"run", "--", path("plain")},
      "fsdp run: cannot run \"" + path("plain") + "\": Permission denied",
      126);
}

TEST_F(CommandLine, SaysWhyTheKernelRefusesAProgram) {
  std::ofstream(path("text")) << "neither a script nor a program\n";
  chmod(path("text").c_str(), 0700);
  const ProcessResult result =
      run({FSDP_PROGRAM, "run", "-n", "2", "--", path("text")},
          {.env = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(
      result.err,
      "fsdp run: cannot run \"" + path("text") + "\": Exec format error\n");
  EXPECT_EQ(result.exit_code, 126);
}

TEST_F(CommandLine, SaysWhyALogCannotBeWritten) {
  std::ofstream(path("file")) << "";
  expect_refused(
      {"run", "--log-dir", path("file") + "/logs", "--", "true"},
      "fsdp run: cannot write " + path("file") +
          "/logs/rank-0.log: Not a directory: choose another --log-dir");
}

} // namespace
} // namespace fsdp::testing
