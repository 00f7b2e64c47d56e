// shm with real processes: what threads cannot show.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>
#include <set>
#include <sstream>

#include "comm/host_memory.h"
#include "unit/comm/process_ranks.h"

// The tests look at the signal that ends a process.
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:allow_user_segv_handler=1";
}
extern "C" const char* __tsan_default_options() {
  return "handle_segv=0";
}

namespace fsdp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kFaultAdvice[] =
    "; all ranks of this host read the same copy of it, so it is read-only: "
    "write to the sharded parameter, outside of forward and backward";

// Files of /dev/shm and abstract sockets of the library. Other tests may have
// some for a moment, so only what stays is a leftover.
std::set<std::string> visible_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path());
  }
  std::istringstream sockets(read_whole("/proc/net/unix"));
  for (std::string word; sockets >> word;) {
    if (word.starts_with("@fsdp-")) {
      names.insert(word);
    }
  }
  return names;
}

std::set<std::string> names_that_stay(const std::set<std::string>& before) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::set<std::string> staying;
  std::ranges::set_difference(
      visible_names(), before, std::inserter(staying, staying.end()));
  while (!staying.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto now = visible_names();
    std::erase_if(
        staying, [&](const std::string& name) { return !now.contains(name); });
  }
  return staying;
}

// The text of the PeerDiedError of a barrier, and how long it took to come.
std::string text_of_died_peer(Communicator& comm) {
  const auto start = std::chrono::steady_clock::now();
  try {
    comm.barrier("next step");
  } catch (const PeerDiedError& error) {
    const auto waited = std::chrono::steady_clock::now() - start;
    return (waited < std::chrono::seconds(1) ? "in time: " : "too late: ") +
           std::string(error.what());
  }
  return "nothing thrown";
}

TEST(ShmProcesses, GatherAndReduceAcrossProcesses) {
  const auto ends = run_processes(4, [](const BackendArgs& args) {
    const auto comm = make_communicator("auto", args);
    const std::vector<std::int64_t> counts = {500'000, 0, 3, 300'000};
    const auto own = static_cast<std::size_t>(
        counts[static_cast<std::size_t>(comm->rank())]);
    const std::vector<float> input(own, static_cast<float>(comm->rank() + 1));
    std::vector<float> all(800'003);
    comm->all_gather(input.data(), all.data(), counts, DType::kFloat32, "w")
        ->wait();
    std::vector<double> sums(200'001, comm->rank() + 0.5);
    comm->all_reduce(
        sums.data(), 200'001, DType::kFloat64, ReduceOp::kSum, "s");
    comm->barrier("end");
    return std::string(comm->backend()) + ' ' +
           std::to_string(static_cast<long>(
               std::accumulate(all.begin(), all.end(), 0.0))) +
           ' ' +
           std::to_string(
               std::accumulate(sums.begin(), sums.end(), 0.0) / 200'001);
  });
  EXPECT_THAT(ends, Each(Field(&RankEnd::result, "shm 1700009 8.000000")));
}

TEST(ShmProcesses, AllMapOneRegion) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    const auto region = comm->host_memory()->allocate(10'000, "weights");
    region->writable()[comm->rank() * 3'000] =
        static_cast<std::byte>(comm->rank() + 1);
    comm->barrier("written");
    std::string seen;
    for (int rank = 0; rank < comm->size(); ++rank) {
      seen +=
          std::to_string(static_cast<int>(region->readable()[rank * 3'000]));
    }
    comm->barrier("read");
    const bool is_sealed = ftruncate(region->fd(), 100'000) != 0;
    return seen + (is_sealed ? " sealed" : " not sealed");
  });
  EXPECT_THAT(ends, Each(Field(&RankEnd::result, "123 sealed")));
}

TEST(ShmProcesses, AKilledPeerIsNamedWithinASecond) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    comm->barrier("start");
    if (comm->rank() == 1) {
      raise(SIGKILL);
    }
    return text_of_died_peer(*comm);
  });
  EXPECT_EQ(ends[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(
        ends[static_cast<std::size_t>(rank)].result,
        "in time: [rank " + std::to_string(rank) +
            "] rank 1 has died, and is waited for in barrier for 'next step'; "
            "see its last output, and start the job again");
  }
}

// The child keeps every socket of the dead rank open.
TEST(ShmProcesses, AKilledPeerIsNoticedEvenIfItLeavesAChild) {
  int until_end[2];
  ASSERT_EQ(pipe(until_end), 0);
  const auto ends = run_processes(2, [&](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    comm->barrier("start");
    if (comm->rank() == 0) {
      if (fork() == 0) {
        close(until_end[1]);
        char byte = 0;
        [[maybe_unused]] const ssize_t got = read(until_end[0], &byte, 1);
        _exit(0);
      }
      raise(SIGKILL);
    }
    return text_of_died_peer(*comm);
  });
  close(until_end[0]);
  close(until_end[1]);
  EXPECT_THAT(ends[1].result, StartsWith("in time: [rank 1] rank 0 has died"));
}

TEST(ShmProcesses, APeerThatHasLeftIsNamed) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    auto comm = make_communicator("shm", args);
    comm->barrier("start");
    if (comm->rank() == 2) {
      comm.reset();
      return std::string("gone");
    }
    return text_of_died_peer(*comm);
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(
        ends[static_cast<std::size_t>(rank)].result,
        StartsWith(
            "in time: [rank " + std::to_string(rank) +
            "] rank 2 has left the group"));
  }
}

// The last barrier ends well for a slow rank, although others are gone by then.
TEST(ShmProcesses, WhatAPeerDidBeforeItEndedCounts) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    auto comm = make_communicator("shm", args);
    for (int i = 0; i < 200; ++i) {
      comm->barrier("step");
    }
    if (comm->rank() != 0) {
      _exit(7); // without a word
    }
    return std::string("done");
  });
  EXPECT_EQ(ends[0].result, "done");
  EXPECT_EQ(ends[1].exit_code, 7);
  EXPECT_EQ(ends[2].exit_code, 7);
}

TEST(ShmProcesses, AFailureIsToldAcrossProcesses) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    std::string seen;
    for (int failing = 0; failing < 3; ++failing) {
      if (comm->rank() == failing) {
        comm->fail("failure " + std::to_string(failing));
        continue;
      }
      try {
        comm->barrier("step");
      } catch (const PeerError& error) {
        seen += std::string(error.what()).substr(9) + ". ";
      }
    }
    comm->barrier("end");
    return seen;
  });
  EXPECT_EQ(
      ends[0].result, "rank 1 failed: failure 1. rank 2 failed: failure 2. ");
  EXPECT_EQ(
      ends[2].result, "rank 0 failed: failure 0. rank 1 failed: failure 1. ");
}

TEST(ShmProcesses, AForkedChildIsNotTheRank) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    auto comm = make_communicator("shm", args);
    const pid_t child = fork();
    if (child == 0) {
      comm.reset();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    for (int i = 0; i < 10; ++i) {
      comm->barrier("step");
    }
    return std::string("done");
  });
  EXPECT_THAT(ends, Each(Field(&RankEnd::result, "done")));
}

TEST(ShmProcesses, WaitingCostsNoCpu) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    comm->barrier("start");
    const std::clock_t before = std::clock();
    if (comm->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1)); // is the slow one
    }
    comm->barrier("end");
    const auto cpu_ms = (std::clock() - before) * 1000 / CLOCKS_PER_SEC;
    const auto waited_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(
            comm->counters().waited)
            .count();
    return std::string(cpu_ms < 100 ? "idle" : "busy") +
           (waited_ms >= 900 ? " waited" : "");
  });
  EXPECT_EQ(ends[0].result, "idle waited");
}

TEST(ShmProcesses, NothingIsLeftBehindByKilledRanks) {
  const auto before = visible_names();
  for (int round = 0; round < 10; ++round) {
    const auto ends = run_processes(2, [](const BackendArgs& args) {
      const auto comm = make_communicator("shm", args);
      const auto region = comm->host_memory()->allocate(1 << 20, "weights");
      std::memset(region->writable(), 1, region->size());
      comm->barrier("start");
      raise(SIGKILL);
      return std::string();
    });
    EXPECT_THAT(ends, Each(Field(&RankEnd::signal, SIGKILL)));
  }
  EXPECT_THAT(names_that_stay(before), IsEmpty());
}

TEST(ShmProcesses, OneRankWithoutSharedMemoryMakesAllDoWithout) {
  const auto ends = run_processes(3, [](const BackendArgs& args) {
    if (args.rank == 1) {
      setenv("FSDP_DISABLE_SHM", "1", 1);
    }
    try {
      make_communicator("shm", args);
    } catch (const CommError& error) {
      return std::string(error.what());
    }
    return std::string("made one");
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(
        ends[static_cast<std::size_t>(rank)].result,
        "[rank " + std::to_string(rank) +
            "] the ranks of group 'world' cannot use backend 'shm': rank 1: "
            "FSDP_DISABLE_SHM is set; choose another backend, or auto");
  }
}

TEST(ShmProcesses, Rank0MayBeTheOneWithoutSharedMemory) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    setenv("FSDP_DISABLE_SHM", args.rank == 0 ? "1" : "0", 1);
    try {
      make_communicator("auto", args);
    } catch (const CommError& error) {
      return std::string(error.what());
    }
    return std::string("made one");
  });
  EXPECT_THAT(
      ends,
      Each(Field(
          &RankEnd::result,
          EndsWith(
              "cannot use backend 'auto': shm: rank 0: FSDP_DISABLE_SHM is "
              "set; choose another backend, or auto"))));
}

TEST(ShmProcesses, InprocRefusesProcesses) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    try {
      make_communicator("inproc", args);
    } catch (const CommError& error) {
      return std::string(error.what());
    }
    return std::string("made one");
  });
  EXPECT_THAT(
      ends,
      Each(Field(
          &RankEnd::result,
          HasSubstr("ranks of inproc are threads of one process"))));
}

TEST(ShmProcesses, AMissingRankIsNamedWhileJoining) {
  const auto ends = run_processes(
      2,
      [](BackendArgs args) {
        args.size = 3; // rank 2 was never started
        try {
          make_communicator("shm", args);
        } catch (const TimeoutError& error) {
          return std::string(error.what());
        }
        return std::string("made one");
      },
      std::chrono::milliseconds(300));
  EXPECT_THAT(
      ends[0].result,
      StartsWith("timed out after 300 ms waiting for rank 2 to join group "
                 "'world'"));
}

TEST(ShmProcesses, AnAllocationBeyondTheMachineIsRefusedOnEveryRank) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    std::string text;
    try {
      comm->host_memory()->allocate(std::size_t{1} << 50, "weights");
    } catch (const CommError& error) {
      text = error.what();
    }
    const auto region = comm->host_memory()->allocate(64, "small");
    return text + (region->size() == 64 ? " usable" : "");
  });
  const std::string wanted =
      "cannot share memory for 'weights': 1125899906842624 bytes are wanted, ";
  EXPECT_THAT(
      ends[0].result,
      AllOf(
          StartsWith("[rank 0] " + wanted),
          HasSubstr(" are available ("),
          EndsWith(" usable")));
  EXPECT_THAT(
      ends[1].result,
      AllOf(
          StartsWith("[rank 1] rank 0 failed: " + wanted),
          EndsWith(" usable")));
}

void write_to(const std::byte* readable) {
  *const_cast<volatile std::byte*>(readable) = std::byte{1};
}

TEST(ShmProcesses, AWriteToAGatheredParameterEndsTheRankWithItsName) {
  const auto ends = run_processes(2, [](const BackendArgs& args) {
    const auto comm = make_communicator("shm", args);
    const auto region = comm->host_memory()->allocate(3 * 4096, "weights");
    region->name_range(0, 4096, "parameter 'bias' of unit 'layers.0'");
    region->name_range(4096, 8192, "parameter 'weight' of unit 'layers.0'");
    comm->barrier("start");
    if (comm->rank() == 1) {
      write_to(region->readable() + 5000);
    }
    try {
      comm->barrier("forward");
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  });
  const std::string text =
      "write to a gathered parameter: parameter 'weight' of unit 'layers.0'" +
      std::string(kFaultAdvice);
  EXPECT_EQ(ends[1].signal, SIGSEGV);
  EXPECT_EQ(ends[1].errors, "[fsdp] " + text + "\n");
  EXPECT_EQ(ends[0].result, "[rank 0] rank 1 failed: " + text);
}

TEST(FaultHandler, LeavesOtherFaultsToTheHandlerBeforeIt) {
  const auto ends = run_processes(1, [](const BackendArgs&) {
    struct sigaction before {};
    before.sa_sigaction = [](int, siginfo_t*, void*) {
      [[maybe_unused]] const ssize_t n = write(2, "the one before\n", 15);
      _exit(55);
    };
    before.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &before, nullptr);
    const auto region = SharedRegion::create(8192, "weights");
    region->name_range(0, 4096, "named");
    write_to(region->readable() + 4096); // outside of the named range
    return std::string();
  });
  EXPECT_EQ(ends[0].exit_code, 55);
  EXPECT_EQ(ends[0].errors, "the one before\n");
}

TEST(FaultHandler, HandsItsOwnFaultsOnToo) {
  const auto ends = run_processes(1, [](const BackendArgs&) {
    struct sigaction before {};
    before.sa_handler = [](int) { _exit(56); };
    sigaction(SIGSEGV, &before, nullptr);
    const auto region = SharedRegion::create(8192, "weights");
    region->name_range(0, 4096, "named");
    write_to(region->readable() + 4095);
    return std::string();
  });
  EXPECT_EQ(ends[0].exit_code, 56);
  EXPECT_EQ(
      ends[0].errors,
      "[fsdp] write to a gathered parameter: named" +
          std::string(kFaultAdvice) + "\n");
}

TEST(FaultHandler, ForgetsTheNamesOfARegionThatIsGone) {
  const auto ends = run_processes(1, [](const BackendArgs&) {
    void* place = nullptr;
    {
      const auto region = SharedRegion::create(4096, "old");
      region->name_range(0, 4096, "old name");
      place = const_cast<std::byte*>(region->readable());
    }
    place = mmap(
        place,
        4096,
        PROT_READ,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
        -1,
        0);
    write_to(static_cast<const std::byte*>(place));
    return std::string();
  });
  EXPECT_EQ(ends[0].signal, SIGSEGV);
  EXPECT_EQ(ends[0].errors, "");
}

TEST(FaultHandler, KeepsFourThousandNamesAndReusesThePlaces) {
  const auto ends = run_processes(1, [](const BackendArgs&) {
    for (int round = 0; round < 3; ++round) {
      const auto region = SharedRegion::create(5000, "many");
      for (std::size_t i = 0; i < 5000; ++i) {
        region->name_range(i, 1, "name " + std::to_string(i));
      }
    }
    const auto region = SharedRegion::create(5000, "last");
    for (std::size_t i = 0; i < 5000; ++i) {
      region->name_range(i, 1, "name " + std::to_string(i));
    }
    write_to(region->readable() + 4095);
    return std::string();
  });
  EXPECT_THAT(ends[0].errors, HasSubstr("parameter: name 4095;"));
}

TEST(FaultHandler, ASignalThatIsSentStillEndsTheProcess) {
  const auto ends = run_processes(1, [](const BackendArgs&) {
    const auto region = SharedRegion::create(4096, "weights");
    region->name_range(0, 4096, "named");
    kill(getpid(), SIGSEGV);
    return std::string("survived");
  });
  EXPECT_EQ(ends[0].signal, SIGSEGV);
  EXPECT_THAT(ends[0].errors, IsEmpty());
}

} // namespace
} // namespace fsdp::testing
