#include "comm/c10d/job_store.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/c10d/sockets.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

int port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

struct Job {
  UniqueFd listener = listen_on("127.0.0.1", 0, 0);
  int port = port_of(listener);

  std::shared_ptr<Store> store(int rank) const {
    return connect_job_store(
        {.host = "127.0.0.1",
         .port = port,
         .rank = rank,
         .serve = rank == 0,
         .listen_fd = rank == 0 ? std::optional(listener.get()) : std::nullopt,
         .timeout = 10s});
  }
};

TEST(JobStore, HandsValuesFromAnyRankToAnyOther) {
  const Job job;
  const auto first = job.store(0);
  const auto second = job.store(1);
  const auto third = job.store(2);
  const std::string bytes("a\0b\xff", 4);
  second->set("key", bytes);
  EXPECT_EQ(first->get("key", 1s, "it"), bytes);
  EXPECT_EQ(third->get("key", 1s, "it"), bytes);
  first->set("empty", "");
  EXPECT_EQ(second->get("empty", 1s, "it"), "");
  const std::string large(3'000'000, 'x');
  third->set("large", large);
  EXPECT_EQ(first->get("large", 5s, "it"), large);
}

TEST(JobStore, WakesAllThatWaitForAKey) {
  const Job job;
  const auto server = job.store(0);
  std::vector<std::thread> waiting;
  for (int rank = 1; rank < 5; ++rank) {
    waiting.emplace_back([&, rank] {
      EXPECT_EQ(job.store(rank)->get("key", 10s, "it"), "value");
    });
  }
  server->set("key", "value");
  for (std::thread& thread : waiting) {
    thread.join();
  }
}

TEST(JobStore, SaysWhatAWaitThatEndedInVainWasFor) {
  const Job job;
  const auto server = job.store(0);
  const auto client = job.store(3);
  try {
    client->get("key", 100ms, "rank 2 to join");
    ADD_FAILURE() << "threw nothing";
  } catch (const TimeoutError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr(
            "[rank 3] timed out after 100 ms waiting for rank 2 to join"));
  }
  // The answer to the wait that was given up is nobody else's.
  server->set("key", "late");
  server->set("other", "value");
  EXPECT_EQ(client->get("other", 1s, "it"), "value");
  EXPECT_EQ(client->get("key", 1s, "it"), "late");
}

TEST(JobStore, SaysThatItsServerHasEnded) {
  const Job job;
  auto server = job.store(0);
  const auto client = job.store(1);
  server.reset();
  try {
    client->get("key", 10s, "rank 2 to join");
    ADD_FAILURE() << "threw nothing";
  } catch (const PeerDiedError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[rank 1] lost the job's store at 127.0.0.1:" +
            std::to_string(job.port) +
            " while waiting for rank 2 to join: the process that runs it (rank "
            "0, or torchrun's agent) has ended; see its last output");
  }
}

TEST(JobStore, DropsClientsThatSpeakAnotherLanguage) {
  const Job job;
  const auto server = job.store(0);
  const auto soon = std::chrono::steady_clock::now() + 5s;
  const UniqueFd stranger = connect_to("127.0.0.1", job.port, 1, soon, 5s);
  const std::string hello = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  ASSERT_GT(send(stranger.get(), hello.data(), hello.size(), 0), 0);
  char answer = 0;
  EXPECT_EQ(recv(stranger.get(), &answer, 1, 0), 0); // closed, no answer
  server->set("key", "value");
  EXPECT_EQ(job.store(1)->get("key", 1s, "it"), "value");
}

TEST(JobStore, OfAnEarlierGenerationSendsClientsAwayUntilItsSuccessorCame) {
  const Job job;
  auto first = job.store(0);
  std::thread early([&] {
    const auto store = connect_job_store(
        {.host = "127.0.0.1",
         .port = job.port,
         .rank = 1,
         .generation = 1,
         .timeout = 10s});
    EXPECT_EQ(store->get("key", 10s, "it"), "of the second");
  });
  first->set("key", "of the first");
  EXPECT_EQ(job.store(2)->get("key", 1s, "it"), "of the first");
  first.reset();
  const auto second = connect_job_store(
      {.host = "127.0.0.1",
       .port = job.port,
       .generation = 1,
       .serve = true,
       .listen_fd = job.listener.get()});
  second->set("key", "of the second");
  early.join();
}

TEST(Sockets, FindTheAddressThatPeersReach) {
  EXPECT_EQ(local_address_towards(""), "127.0.0.1");
  EXPECT_EQ(local_address_towards("127.0.0.9"), "127.0.0.1");
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("10.0.0.7"));
  // All on one host, or this host's way to the master is no loopback.
  EXPECT_EQ(
      address_for_peers("127.0.0.1", {"127.0.0.1", "127.0.0.1"}), "127.0.0.1");
  EXPECT_EQ(
      address_for_peers("10.0.0.8", {"127.0.0.1", "10.0.0.8"}), "10.0.0.8");
  // The master's host knows its own name as a loopback address.
  EXPECT_EQ(
      address_for_peers("127.0.0.1", {"127.0.0.1", "192.0.2.1"}),
      local_address_towards("192.0.2.1"));
}

} // namespace
} // namespace fsdp
