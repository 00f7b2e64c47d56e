#include "fsdp/process_group.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "comm/backend.h"
#include "comm/c10d/agent_store.h"
#include "comm/c10d/gloo_backend.h"
#include "comm/c10d/group_without_peers.h"
#include "comm/c10d/job_store.h"
#include "comm/communicator.h"
#include "comm/error_text.h"
#include "comm/rank_threads.h"
#include "core/hash.h"
#include "core/parse_int.h"
#include "env/environment.h"
#include "fsdp/error.h"

namespace fsdp {

struct ProcessGroup::Impl {
  std::string name;
  std::string requested_backend;
  std::string master_addr;
  std::vector<int> world_ranks;
  std::shared_ptr<Store> store;
  std::unique_ptr<Communicator> communicator;
  std::uint64_t num_splits = 0;
  std::vector<std::weak_ptr<Impl>> sub_groups;

  void fail_everywhere(std::string_view what) noexcept {
    communicator->fail(what);
    for (const auto& weak : sub_groups) {
      if (const auto group = weak.lock()) {
        group->fail_everywhere(what);
      }
    }
  }
};

namespace {

using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;

Millis time_left(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now());
  return std::max(left, Millis(1));
}

/// [collective] Everything of `impl` but the communicator is there.
ProcessGroup finish_group(
    std::shared_ptr<ProcessGroup::Impl> impl, int rank, Millis timeout) {
  const int size = static_cast<int>(impl->world_ranks.size());
  impl->communicator = make_communicator(
      impl->requested_backend,
      {.store = impl->store,
       .rank = rank,
       .size = size,
       .timeout = timeout,
       .group_name = impl->name,
       .master_addr = impl->master_addr});
  // Beyond this point nobody reads what another rank left in the store, so that
  // rank 0, which may hold it, is free to end.
  impl->communicator->barrier("the making of group '" + impl->name + "'");
  return ProcessGroup(std::move(impl));
}

std::shared_ptr<ProcessGroup::Impl> new_world(
    std::shared_ptr<Store> store,
    int size,
    const std::string& backend,
    std::string master_addr) {
  register_host_backends();
  register_gloo_backend();
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->name = "world";
  impl->requested_backend = backend;
  impl->master_addr = std::move(master_addr);
  impl->store = std::move(store);
  for (int r = 0; r < size; ++r) {
    impl->world_ranks.push_back(r);
  }
  return impl;
}

/// Keys of one init_process_group: a store that serves several of them (a
/// second call in the same processes, a restart by torchrun) keeps them apart.
std::string job_prefix(std::uint32_t generation) {
  std::string prefix = "fsdp/" + std::to_string(generation) + "/";
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (const char* value = std::getenv(name)) {
      prefix += std::string(value) + "/";
    }
  }
  return prefix;
}

/// [collective] Throws TimeoutError naming the ranks that did not come. Rank 0,
/// which may hold the store and take it along, gives its verdict to the others.
class RollCall {
 public:
  RollCall(Store& store, const LaunchEnvironment& env, Millis timeout)
      : store_(store), env_(env), timeout_(timeout) {}

  void run(Clock::time_point deadline) {
    store_.set(here(env_.rank), kPresent);
    std::vector<int> missing;
    for (int r = 0; r < env_.world_size; ++r) {
      // Once one is late, the store must still be heard of the others.
      const auto until =
          missing.empty() ? deadline : deadline + kTimeForAnswers;
      if (!came(here(r), time_left(until), kPresent)) {
        missing.push_back(r);
      }
    }
    if (missing.empty()) {
      return;
    }
    if (env_.rank == 0) {
      give_verdict(missing);
    } else {
      store_.set(heard(env_.rank), kPresent);
    }
    throw TimeoutError(
        rank_prefix(env_.rank) + name_ranks(missing) + " of " +
        std::to_string(env_.world_size) + " did not join at " +
        env_.master_addr + ":" + std::to_string(env_.master_port) + " within " +
        time_text(timeout_) + "; start them, or raise the timeout");
  }

 private:
  static constexpr Millis kTimeForAnswers{1000};
  static constexpr const char* kPresent = "present";
  static constexpr const char* kAbsent = "absent";

  static std::string here(int rank) { return "here/" + std::to_string(rank); }
  static std::string heard(int rank) { return "heard/" + std::to_string(rank); }

  bool came(const std::string& key, Millis timeout, const char* expected) {
    try {
      return store_.get(key, timeout, "the other ranks to join") == expected;
    } catch (const TimeoutError&) {
      return false;
    }
  }

  void give_verdict(const std::vector<int>& missing) {
    const auto deadline = Clock::now() + kTimeForAnswers;
    for (const int r : missing) {
      store_.set(here(r), kAbsent);
    }
    for (int r = 1; r < env_.world_size; ++r) {
      if (!std::binary_search(missing.begin(), missing.end(), r)) {
        came(heard(r), time_left(deadline), kPresent);
      }
    }
  }

  Store& store_;
  const LaunchEnvironment& env_;
  Millis timeout_;
};

void parse_master(const std::string& master, LaunchEnvironment& env) {
  const auto colon = master.rfind(':');
  std::optional<int> port;
  if (colon != std::string::npos && colon > 0) {
    port = parse_int(std::string_view(master).substr(colon + 1));
  }
  if (!port || *port < 1 || *port > 65535) {
    throw ConfigError(
        rank_prefix(env.rank) + "InitOptions::master is '" + master +
        "'; expected address:port with a port from 1 to 65535");
  }
  env.master_addr = master.substr(0, colon);
  if (env.master_addr.front() == '[' && env.master_addr.back() == ']') {
    env.master_addr = env.master_addr.substr(1, env.master_addr.size() - 2);
  }
  env.master_port = *port;
}

LaunchEnvironment from_options(const InitOptions& options) {
  if (!options.rank || !options.world_size || !options.master) {
    throw ConfigError(
        "InitOptions: rank, world_size and master go together; give all three "
        "or none");
  }
  LaunchEnvironment env;
  env.rank = *options.rank;
  env.world_size = *options.world_size;
  if (env.world_size < 1) {
    throw ConfigError(
        "InitOptions::world_size is " + std::to_string(env.world_size) +
        "; expected 1 or more");
  }
  if (env.rank < 0 || env.rank >= env.world_size) {
    throw ConfigError(
        "InitOptions::rank is " + std::to_string(env.rank) +
        "; expected 0 to " + std::to_string(env.world_size - 1) +
        " in a world of " + std::to_string(env.world_size));
  }
  parse_master(*options.master, env);
  return env;
}

/// Tells the others before it throws on.
void run_rank(
    const std::shared_ptr<ProcessGroup::Impl>& impl,
    int rank,
    const std::function<void(ProcessGroup)>& body,
    Millis timeout) {
  const auto tell_others = [&](const char* what) {
    if (impl->communicator) {
      impl->fail_everywhere(what);
    }
  };
  try {
    body(finish_group(impl, rank, timeout));
  } catch (const std::exception& error) {
    tell_others(error.what());
    throw;
  } catch (...) {
    tell_others("an exception that is no std::exception");
    throw;
  }
}

void check_members(
    const std::vector<int>& ranks,
    int rank,
    int size,
    const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        rank_prefix(rank) + "split '" + name + "': " + why +
        "; give ranks of this group in ascending order, this rank among them");
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      refuse(
          "rank " + std::to_string(ranks[i]) + " is not in a group of " +
          std::to_string(size));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      refuse(
          "rank " + std::to_string(ranks[i]) + " comes after rank " +
          std::to_string(ranks[i - 1]));
    }
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
    refuse("rank " + std::to_string(rank) + " is not a member");
  }
}

/// [collective over the parent] Throws MismatchError on every rank unless the
/// members of each sub-group named the same members and the same name.
void agree_on_members(
    Communicator& parent,
    const std::vector<int>& ranks,
    const std::string& name) {
  const auto size = static_cast<std::size_t>(parent.size());
  const std::size_t row = size + 1; // one flag for each rank, then the name
  std::vector<std::int64_t> rows(size * row, 0);
  std::int64_t* own =
      rows.data() + static_cast<std::size_t>(parent.rank()) * row;
  for (const int r : ranks) {
    own[r] = 1;
  }
  own[size] = static_cast<std::int64_t>(fnv1a(name));
  const std::vector<std::int64_t> counts(size, static_cast<std::int64_t>(row));
  parent
      .all_gather(
          own, rows.data(), counts, DType::kInt64, "the members of a split")
      ->wait();
  for (std::size_t i = 0; i < size; ++i) {
    const std::int64_t* mine = rows.data() + i * row;
    for (std::size_t j = 0; j < size; ++j) {
      const std::int64_t* theirs = rows.data() + j * row;
      if (mine[j] != 0 && !std::equal(mine, mine + row, theirs)) {
        throw MismatchError(
            rank_prefix(parent.rank()) +
            "split: " + name_ranks({static_cast<int>(i), static_cast<int>(j)}) +
            " named different members or names of the sub-group that holds "
            "both; give the same on every member");
      }
    }
  }
}

} // namespace

int ProcessGroup::rank() const {
  return impl_->communicator->rank();
}

int ProcessGroup::size() const {
  return impl_->communicator->size();
}

const std::vector<int>& ProcessGroup::world_ranks() const {
  return impl_->world_ranks;
}

Communicator& ProcessGroup::communicator() const {
  return *impl_->communicator;
}

void ProcessGroup::barrier(std::string_view subject) const {
  impl_->communicator->barrier(subject);
}

ProcessGroup ProcessGroup::split(
    const std::vector<int>& ranks, std::string name) const {
  check_members(ranks, rank(), size(), name);
  Communicator& parent = communicator();
  parent.meet({.meeting = Meeting::kSplit, .subject = impl_->name});
  agree_on_members(parent, ranks, name);

  const std::string prefix = "split" + std::to_string(impl_->num_splits++) +
                             "." + std::to_string(ranks.front()) + "/";
  auto group = std::make_shared<Impl>();
  group->name = std::move(name);
  group->requested_backend =
      ranks.size() == 1 ? "self" : impl_->requested_backend;
  group->master_addr = impl_->master_addr;
  group->store = prefixed(impl_->store, prefix);
  for (const int r : ranks) {
    group->world_ranks.push_back(impl_->world_ranks[static_cast<size_t>(r)]);
  }
  impl_->sub_groups.push_back(group);
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank());
  return finish_group(
      std::move(group),
      static_cast<int>(place - ranks.begin()),
      parent.timeout());
}

ProcessGroup init_process_group(const InitOptions& options) {
  const bool given = options.rank || options.world_size || options.master;
  const LaunchEnvironment env =
      given ? from_options(options) : read_launch_environment();
  if (options.timeout <= Millis(0)) {
    throw ConfigError(
        rank_prefix(env.rank) + "the timeout is " + time_text(options.timeout) +
        "; expected more than 0 s");
  }
  const auto deadline = Clock::now() + options.timeout;
  std::shared_ptr<Store> store;
  if (env.world_size == 1) {
    store = std::make_shared<MemoryStore>();
  } else {
    static std::atomic<std::uint32_t> num_worlds{0};
    const std::uint32_t generation = num_worlds++;
    const JobStoreArgs args{
        .host = env.master_addr,
        .port = env.master_port,
        .rank = env.rank,
        .generation = generation,
        .serve = env.rank == 0 && !env.store_is_external,
        .listen_fd = env.master_listen_fd,
        .timeout = options.timeout};
    store = prefixed(
        env.store_is_external ? connect_agent_store(args)
                              : connect_job_store(args),
        job_prefix(generation));
    RollCall(*store, env, options.timeout).run(deadline);
  }
  return finish_group(
      new_world(
          std::move(store), env.world_size, options.backend, env.master_addr),
      env.rank,
      options.timeout);
}

ProcessGroup group_without_peers(
    int rank, int size, const std::string& backend) {
  return finish_group(
      new_world(std::make_shared<MemoryStore>(), size, backend, ""),
      rank,
      InitOptions().timeout);
}

void run_ranks(
    int size,
    const std::function<void(ProcessGroup)>& body,
    const InitOptions& options) {
  if (size < 1) {
    throw UsageError(
        "run_ranks: size is " + std::to_string(size) + "; expected 1 or more");
  }
  if (options.rank || options.world_size || options.master) {
    throw UsageError(
        "run_ranks: rank, world_size and master have no meaning for threads; "
        "leave them unset");
  }
  const auto store = std::make_shared<MemoryStore>();
  run_on_threads(size, [&](int rank) {
    run_rank(
        new_world(store, size, options.backend, ""),
        rank,
        body,
        options.timeout);
  });
}

} // namespace fsdp
