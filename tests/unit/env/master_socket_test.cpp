#include "env/master_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace fsdp {
namespace {

/// Whether something listens at this address of version 4.
bool answers(const char* address, int port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, address, &to.sin_addr);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(MasterSocket, OfAnAddressInDigitsIsOnThatAddressAlone) {
  for (const char* given : {"127.0.0.1", "localhost"}) {
    const MasterSocket socket = listen_as_master(given, 0);
    ASSERT_TRUE(socket.fd) << given;
    EXPECT_GT(socket.port, 0);
    EXPECT_TRUE(answers("127.0.0.1", socket.port)) << given;
    EXPECT_FALSE(answers("127.0.0.9", socket.port)) << given;
  }
}

TEST(MasterSocket, OfANameOrAForwardedAddressIsOnAllAddresses) {
  for (const char* given : {"some-name.invalid", "192.0.2.1", "2001:db8::1"}) {
    const MasterSocket socket = listen_as_master(given, 0);
    ASSERT_TRUE(socket.fd) << given;
    EXPECT_TRUE(answers("127.0.0.1", socket.port)) << given;
    EXPECT_TRUE(answers("127.0.0.9", socket.port)) << given;
  }
}

TEST(MasterSocket, SaysThatThePortIsTaken) {
  const MasterSocket taken = listen_as_master("127.0.0.1", 0);
  for (const char* given : {"127.0.0.1", "some-name.invalid"}) {
    const MasterSocket socket = listen_as_master(given, taken.port);
    EXPECT_FALSE(socket.fd) << given;
    EXPECT_EQ(socket.error, EADDRINUSE) << given;
  }
  EXPECT_EQ(listen_as_master("127.0.0.9", taken.port).port, taken.port);
}

} // namespace
} // namespace fsdp
