// The port at which the ranks meet, and the address as given.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>

#include "cli/launcher/launcher_fixture.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Port : public LauncherTest {
 protected:
  void TearDown() override {
    if (busy_fd_ >= 0)
      close(busy_fd_);
    LauncherTest::TearDown();
  }

  /// A port of 127.0.0.1 that this test listens on.
  int occupy_port() {
    busy_fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(busy_fd_, any, size), 0);
    EXPECT_EQ(listen(busy_fd_, 1), 0);
    EXPECT_EQ(getsockname(busy_fd_, any, &size), 0);
    return ntohs(address.sin_port);
  }

  void release_port() { close(std::exchange(busy_fd_, -1)); }

  static std::string own_command_line() {
    std::string text = read_text("/proc/self/cmdline");
    std::replace(text.begin(), text.end(), '\0', ' ');
    text.pop_back();
    return text.size() > 80 ? text.substr(0, 80) + "..." : text;
  }

 private:
  int busy_fd_ = -1;
};

TEST_F(Port, OfTwoJobsStartedAtOnceNeverClashes) {
  for (int i = 0; i < 20; ++i) {
    ChildProcess& a = start(fsdp_run({"-n", "2"}, {"variables", "meet"}));
    ChildProcess& b = start(fsdp_run({"-n", "2"}, {"variables", "meet"}));
    EXPECT_EQ(finish(a).exit_code, 0) << a.err();
    EXPECT_EQ(finish(b).exit_code, 0) << b.err();
  }
}

TEST_F(Port, ThatIsBusyIsRefusedAtOnceWithItsOwner) {
  const int port = occupy_port();
  const ProcessResult result = run(
      fsdp_run({"-n", "2", "--master-port", std::to_string(port)}, {"meet"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_LT(result.elapsed, 3s);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(
      result.err,
      "fsdp run: port " + std::to_string(port) +
          " of 127.0.0.1 is in use by pid " + std::to_string(getpid()) + " (" +
          own_command_line() +
          "): choose another --master-port, or leave it out on a single node "
          "for a free one\n");
}

TEST_F(Port, ZeroAndNoneTakeAFreeOne) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"-n", "2", "--master-port", "0"},
        std::vector<std::string>{"-n", "2"}}) {
    const ProcessResult result = run(fsdp_run(options, {"variables", "meet"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_GT(std::stoi(word_after("MASTER_PORT=", result.out)), 0);
  }
}

TEST_F(Port, GivenIsTheOneUsed) {
  const std::string port = std::to_string(occupy_port());
  release_port();
  const ProcessResult result =
      run(fsdp_run({"-n", "2", "--master-port", port}, {"variables", "meet"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(word_after("MASTER_PORT=", result.out), port);
}

TEST_F(Port, IsFreeAgainAtOnceAfterACrash) {
  const std::string port = std::to_string(occupy_port());
  release_port();
  for (const char* crash : {"0:segfault", "1:kill=9", "0:exit=1"}) {
    // The connections of `meet` are open when the job dies.
    const ProcessResult result = run(
        fsdp_run({"-n", "2", "--master-port", port}, {"meet", crash, "wait"}));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("met"));
    EXPECT_FALSE(port_is_listening(std::stoi(port)));
  }
  const ProcessResult again =
      run(fsdp_run({"-n", "2", "--master-port", port}, {"meet"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(Port, IsClosedWithRankZeroSoThatNobodyWaitsForIt) {
  const std::string done = path("done");
  ChildProcess& child = start(fsdp_run(
      {"-n", "2"}, {"variables", "meet", "1:file=" + done, "0:exit=0"}));
  ASSERT_TRUE(child.wait_for_output("met", 10s));
  ASSERT_TRUE(child.wait_for_output("MASTER_PORT=", 10s));
  const int port = std::stoi(word_after("MASTER_PORT=", child.out()));
  EXPECT_TRUE(wait_until([&] { return !port_is_listening(port); }, 5s));
  std::ofstream(done.c_str()) << "";
  EXPECT_EQ(finish(child).exit_code, 0);
}

class Address : public Port {};

TEST_F(Address, IsUsedAsGiven) {
  const ProcessResult result = run(fsdp_run(
      {"-n", "2", "--master-addr", "127.0.0.9"}, {"variables", "meet"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(word_after("MASTER_ADDR=", result.out), "127.0.0.9");
}

TEST_F(Address, IsNamedAsGivenInMessages) {
  const std::string port = std::to_string(occupy_port());
  // The same port of another address is free ...
  const ProcessResult other = run(fsdp_run(
      {"--master-addr", "127.0.0.9", "--master-port", port}, {"print=ok"}));
  EXPECT_EQ(other.exit_code, 0) << other.err;
  // ... and a name means all of them.
  const ProcessResult name = run(fsdp_run(
      {"--master-addr", "some-name", "--master-port", port}, {"print=ok"}));
  EXPECT_EQ(name.exit_code, 2);
  EXPECT_THAT(
      name.err,
      HasSubstr("fsdp run: port " + port + " of some-name is in use by pid "));
}

TEST_F(Address, NeedsNoResolver) {
  // A preloaded library fails and notes every look-up, forward or reverse, in
  // the launcher and in the ranks.
  const std::string trace = path("trace");
  const std::string job = std::string(FSDP_PROGRAM) +
                          " run -n 2 --master-addr 127.0.0.9 -- " +
                          FSDP_RANK_PROGRAM + " variables meet";
  const ProcessResult result =
      run({"bash", "-c", job},
          {.env = {
               {"LD_PRELOAD", FSDP_NO_RESOLVER},
               {"FSDP_RESOLVER_TRACE", trace},
               {"ASAN_OPTIONS", "verify_asan_link_order=0"}}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(word_after("MASTER_ADDR=", result.out), "127.0.0.9");
  EXPECT_THAT(lines_of(result.out), ::testing::Contains("[rank 1] met"));
  EXPECT_EQ(read_text(trace), "");
}

} // namespace
} // namespace fsdp::testing
