// What one rank does in process_group_test: `rank_program SCENARIO
// [key=value]`. An error is one line on stderr, "Type: text", and exit
// status 1.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "fsdp/error.h"
#include "fsdp/process_group.h"

// Every question to a resolver of this process comes through here. A reverse
// look-up gets an answer that leads nowhere.
namespace {
std::atomic<int> num_reverse_look_ups{0};
std::atomic<int> num_forward_look_ups{0};

template <class Function>
Function next_of(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
} // namespace

extern "C" int getnameinfo(
    const sockaddr* address,
    socklen_t length,
    char* host,
    socklen_t host_length,
    char* service,
    socklen_t service_length,
    int flags) {
  if ((flags & NI_NUMERICHOST) == 0 && host != nullptr) {
    ++num_reverse_look_ups;
    const int result = next_of<decltype(&getnameinfo)>("getnameinfo")(
        address,
        length,
        host,
        host_length,
        service,
        service_length,
        flags | NI_NUMERICHOST);
    std::strncpy(host, "misleading-name.invalid", host_length);
    return result;
  }
  return next_of<decltype(&getnameinfo)>("getnameinfo")(
      address, length, host, host_length, service, service_length, flags);
}

extern "C" int getaddrinfo(
    const char* node,
    const char* service,
    const addrinfo* hints,
    addrinfo** result) {
  const bool only_digits =
      hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  sockaddr_storage ignored;
  if (node != nullptr && !only_digits &&
      inet_pton(AF_INET, node, &ignored) != 1 &&
      inet_pton(AF_INET6, node, &ignored) != 1) {
    ++num_forward_look_ups;
  }
  return next_of<decltype(&getaddrinfo)>("getaddrinfo")(
      node, service, hints, result);
}

namespace fsdp {
namespace {

using Arguments = std::map<std::string, std::string>;

Arguments parse(int argc, char** argv) {
  Arguments arguments{{"backend", "auto"}, {"timeout_ms", "30000"}};
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const auto equals = text.find('=');
    arguments[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return arguments;
}

ProcessGroup join(const Arguments& arguments) {
  return init_process_group(
      {.backend = arguments.at("backend"),
       .timeout =
           std::chrono::milliseconds(std::stoi(arguments.at("timeout_ms")))});
}

std::int64_t sum_of(const ProcessGroup& group, std::int64_t value) {
  group.communicator().all_reduce(
      &value, 1, DType::kInt64, ReduceOp::kSum, "a sum");
  return value;
}

void say(const std::string& line) {
  std::cout << line << std::endl;
}

void report_world(const Arguments& arguments) {
  const ProcessGroup world = join(arguments);
  say(std::string(world.communicator().backend()) + " " +
      std::to_string(world.rank()) + "/" + std::to_string(world.size()) +
      " sum " + std::to_string(sum_of(world, world.rank())));
}

// A program may form its world again over the same address, after the first has
// gone or beside it.
void join_again(const Arguments& arguments) {
  for (int i = 0; i < 3; ++i) {
    report_world(arguments);
  }
  const ProcessGroup kept = join(arguments);
  report_world(arguments);
  say("kept sum " + std::to_string(sum_of(kept, kept.rank())));
}

void report_look_ups(const Arguments& arguments) {
  report_world(arguments);
  say("reverse " + std::to_string(num_reverse_look_ups) + " forward " +
      std::to_string(num_forward_look_ups));
}

// Two groups that share ranks, with barriers in each.
void overlap(const Arguments& arguments) {
  const ProcessGroup world = join(arguments);
  const int rank = world.rank();
  const ProcessGroup low =
      rank < 3 ? world.split({0, 1, 2}, "low") : world.split({3}, "rest");
  const ProcessGroup high =
      rank > 0 ? world.split({1, 2, 3}, "high") : world.split({0}, "rest");
  std::int64_t total = 0;
  for (int step = 0; step < 20; ++step) {
    low.barrier("low step");
    total += sum_of(low, rank);
    total += sum_of(high, rank);
    high.barrier("high step");
  }
  say("total " + std::to_string(total));
}

// Rank `victim` is killed, or stops, at the point `when`; the others say what
// they see, and how soon.
void lose_a_rank(const Arguments& arguments) {
  const ProcessGroup world = join(arguments);
  const int victim = std::stoi(arguments.at("victim"));
  const std::string& when = arguments.at("when");
  std::vector<std::int64_t> counts(
      static_cast<std::size_t>(world.size()), 2'000'000);
  std::vector<float> data(
      static_cast<std::size_t>(world.size()) * 2'000'000, 1.0f);
  const auto gather = [&] {
    return world.communicator().all_gather(
        data.data(), data.data(), counts, DType::kFloat32, "unit 'layers.3'");
  };
  if (when != "at once") {
    gather()->wait();
  }
  if (world.rank() == victim) {
    if (when == "amid data") {
      const auto work = gather();
      // The others' data phase needs this worker; whatever it has done by
      // now, the rest of it never comes.
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      raise(SIGKILL);
    }
    raise(when == "stopped" ? SIGSTOP : SIGKILL);
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    for (int step = 0; step < 100; ++step) {
      gather()->wait();
    }
  } catch (const CommError&) {
    const auto took = std::chrono::steady_clock::now() - start;
    std::cout << "seconds " << std::chrono::duration<double>(took).count()
              << std::endl;
    try {
      world.barrier("the group is past use");
    } catch (const CommError& again) {
      say(std::string("again: ") + again.what());
    }
    throw;
  }
}

// What torchrun's agent does: the store is in a process that is no rank.
void serve(const Arguments& arguments) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(arguments.at("port")));
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  say("serving");
  pause();
}

void run(const std::string& scenario, const Arguments& arguments) {
  const std::map<std::string, void (*)(const Arguments&)> scenarios = {
      {"report_world", report_world},
      {"join_again", join_again},
      {"report_look_ups", report_look_ups},
      {"overlap", overlap},
      {"lose_a_rank", lose_a_rank},
      {"serve", serve},
  };
  scenarios.at(scenario)(arguments);
}

template <class Type>
int complain(const char* type, const Type& error) {
  std::cerr << type << ": " << error.what() << std::endl;
  return 1;
}

} // namespace
} // namespace fsdp

int main(int argc, char** argv) {
  try {
    fsdp::run(argv[1], fsdp::parse(argc, argv));
    return 0;
  } catch (const fsdp::ConfigError& error) {
    return fsdp::complain("ConfigError", error);
  } catch (const fsdp::TimeoutError& error) {
    return fsdp::complain("TimeoutError", error);
  } catch (const fsdp::PeerError& error) {
    return fsdp::complain("PeerError", error);
  } catch (const fsdp::PeerDiedError& error) {
    return fsdp::complain("PeerDiedError", error);
  } catch (const std::exception& error) {
    return fsdp::complain("exception", error);
  }
}
