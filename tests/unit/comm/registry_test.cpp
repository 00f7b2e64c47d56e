// Names, requests, stores, the registry of backends, and limits of memory.

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/backend.h"
#include "comm/error_text.h"
#include "comm/memory_limits.h"
#include "comm/wire_request.h"
#include "fsdp/error.h"
#include "support/comm_ranks.h"
#include "unit/comm/process_ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(Request, DescribesWhatItAsksFor) {
  Request request{
      .meeting = Meeting::kReduceScatter,
      .dtype = DType::kFloat32,
      .numel = 1024,
      .subject = "unit 'layers.0'"};
  EXPECT_EQ(
      request.describe(),
      "reduce_scatter(sum, float32, 1024 elements) for unit 'layers.0'");
  request.meeting = Meeting::kAllGather;
  request.numel = 1;
  EXPECT_EQ(
      request.describe(), "all_gather(float32, 1 element) for unit 'layers.0'");
  request.meeting = Meeting::kAllocate;
  request.numel = 64;
  request.subject = "gradients";
  EXPECT_EQ(request.describe(), "allocate(64 bytes) for 'gradients'");
  EXPECT_EQ(Request{}.describe(), "barrier");
}

TEST(WireRequest, KeepsAllFieldsAndCutsTheSubject) {
  const Request request{
      .meeting = Meeting::kForward,
      .dtype = DType::kBFloat16,
      .op = ReduceOp::kMax,
      .grad_enabled = true,
      .root = 3,
      .numel = 1'000'000'000'000,
      .subject = std::string(300, 'x')};
  const Request copy = decode(encode(request));
  EXPECT_EQ(copy.meeting, request.meeting);
  EXPECT_EQ(copy.dtype, request.dtype);
  EXPECT_EQ(copy.op, request.op);
  EXPECT_EQ(copy.grad_enabled, true);
  EXPECT_EQ(copy.root, 3);
  EXPECT_EQ(copy.numel, request.numel);
  EXPECT_EQ(copy.subject, std::string(119, 'x'));
}

TEST(ErrorText, NamesRanksInWords) {
  EXPECT_EQ(name_ranks({4}), "rank 4");
  EXPECT_EQ(name_ranks({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(name_ranks({0, 2, 5}), "ranks 0, 2 and 5");
}

TEST(MemoryStore, HandsAValueToAWaitingThread) {
  MemoryStore store;
  std::string seen;
  std::thread reader(
      [&] { seen = store.get("key", std::chrono::seconds(20), "the key"); });
  store.set("key", "value");
  reader.join();
  EXPECT_EQ(seen, "value");
}

TEST(MemoryStore, NamesWhatItWaitedFor) {
  MemoryStore store;
  EXPECT_EQ(
      thrown_text<TimeoutError>([&] {
        store.get("key", std::chrono::milliseconds(20), "rank 3 to join");
      }),
      "timed out after 20 ms waiting for rank 3 to join; see whether all ranks "
      "were started with the same address and port, or raise the timeout");
}

TEST(PrefixedStore, KeepsGroupsApart) {
  const auto base = std::make_shared<MemoryStore>();
  const auto first = prefixed(base, "first/");
  const auto second = prefixed(base, "second/");
  first->set("key", "1");
  second->set("key", "2");
  EXPECT_EQ(first->get("key", std::chrono::seconds(1), ""), "1");
  EXPECT_EQ(second->get("key", std::chrono::seconds(1), ""), "2");
  EXPECT_EQ(base->get("second/key", std::chrono::seconds(1), ""), "2");
}

BackendArgs args_of(int rank, int size) {
  BackendArgs args;
  args.store = std::make_shared<MemoryStore>();
  args.rank = rank;
  args.size = size;
  args.timeout = std::chrono::seconds(20);
  args.group_name = "world";
  return args;
}

TEST(Backends, AreKnownByName) {
  register_host_backends();
  register_host_backends();
  EXPECT_THAT(backend_names(), ElementsAre("self", "inproc", "shm"));
  EXPECT_EQ(
      thrown_text<ConfigError>([] { make_communicator("mpi", args_of(0, 2)); }),
      "[rank 0] unknown backend 'mpi'; the backends are auto, self, inproc, "
      "shm");
}

TEST(Backends, AutoTakesSelfForOneRankAndShmForSeveral) {
  EXPECT_EQ(make_communicator("auto", args_of(0, 1))->backend(), "self");
  backend_on_threads("auto")(3, kLongTimeout, [](Communicator& comm) {
    EXPECT_EQ(comm.backend(), "shm");
  });
}

MadeCommunicator refuse(const BackendArgs&) {
  return {.why_not = "it never can"};
}

TEST(Backends, AreTriedByAutoInTheirOrderWhoeverRegistersFirst) {
  register_backend({"test-late", refuse, 1000});
  register_backend({"test-by-name", refuse, std::nullopt});
  register_backend({"test-early", refuse, -1});
  setenv("FSDP_DISABLE_SHM", "1", 1);
  EXPECT_EQ(
      thrown_text<CommError>([] {
        backend_on_threads("auto")(2, kLongTimeout, [](Communicator&) {});
      }).substr(sizeof("[rank 0]")),
      "the ranks of group 'world' cannot use backend 'auto': test-early: it "
      "never can; shm: rank 0: FSDP_DISABLE_SHM is set; test-late: it never "
      "can; choose another backend, or auto");
  unsetenv("FSDP_DISABLE_SHM");
}

TEST(Backends, SelfIsForOneRank) {
  EXPECT_EQ(
      thrown_text<CommError>([] { make_communicator("self", args_of(1, 2)); }),
      "[rank 1] the ranks of group 'world' cannot use backend 'self': it is "
      "for one rank, and there are 2; choose another backend, or auto");
}

class LimitFiles {
 public:
  void write(const std::string& path, const std::string& text) {
    const auto file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// Of a machine, or a container, with this mount of cgroup version 2.
  void write_mount_of_version2() {
    write(
        "proc/self/mountinfo",
        "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }
  MemoryLimit limit() const { return available_memory(folder_.path()); }

 private:
  TemporaryFolder folder_;
};

TEST(AvailableMemory, IsWhatTheMachineHas) {
  LimitFiles files;
  files.write("proc/meminfo", "MemFree: 1 kB\nMemAvailable:    2048 kB\n");
  EXPECT_EQ(files.limit().available_bytes, 2048u * 1024);
  EXPECT_THAT(files.limit().source, StartsWith("MemAvailable of "));
}

TEST(AvailableMemory, IsNoMoreThanCgroupVersion2Allows) {
  LimitFiles files;
  files.write("proc/meminfo", "MemAvailable: 1000000 kB\n");
  files.write("proc/self/cgroup", "0::/jobs/one\n");
  files.write_mount_of_version2();
  files.write("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  files.write("sys/fs/cgroup/jobs/one/memory.current", "10\n");
  files.write("sys/fs/cgroup/jobs/memory.max", "5000000\n");
  files.write("sys/fs/cgroup/jobs/memory.current", "4000000\n");
  files.write(
      "sys/fs/cgroup/jobs/memory.stat", "anon 3\ninactive_file 500000\n");
  EXPECT_EQ(files.limit().available_bytes, 1'500'000u);
  EXPECT_THAT(files.limit().source, EndsWith("/jobs/memory.max"));
}

TEST(AvailableMemory, IsNoMoreThanCgroupVersion1Allows) {
  LimitFiles files;
  files.write("proc/meminfo", "MemAvailable: 1000000 kB\n");
  files.write("proc/self/cgroup", "3:cpu,cpuacct:/\n8:memory:/box\n0::/\n");
  files.write(
      "proc/self/mountinfo",
      "31 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
      "32 20 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  const std::string folder = "sys/fs/cgroup/memory/box/";
  files.write(folder + "memory.limit_in_bytes", "3000000\n");
  files.write(folder + "memory.usage_in_bytes", "3500000\n");
  files.write(folder + "memory.stat", "total_inactive_file 1000000\n");
  EXPECT_EQ(files.limit().available_bytes, 500'000u);
}

TEST(AvailableMemory, InAContainerIsTheMountPointsOwn) {
  LimitFiles files;
  files.write("proc/self/cgroup", "0::/docker/hidden\n");
  files.write_mount_of_version2();
  files.write("sys/fs/cgroup/memory.max", "700\n");
  files.write("sys/fs/cgroup/memory.current", "800\n");
  EXPECT_EQ(files.limit().available_bytes, 0u);
}

TEST(AvailableMemory, IsKnownOnThisMachine) {
  const MemoryLimit limit = available_memory();
  EXPECT_GT(limit.available_bytes, 1u << 20);
  EXPECT_LT(limit.available_bytes, std::uint64_t{1} << 50);
}

} // namespace
} // namespace fsdp::testing
