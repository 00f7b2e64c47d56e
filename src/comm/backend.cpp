#include "comm/backend.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "comm/error_text.h"
#include "comm/host/factories.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<Backend> backends;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::vector<Backend> registered() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.backends;
}

[[noreturn]] void throw_unusable(
    const BackendArgs& args,
    std::string_view name,
    const std::string& reasons) {
  throw CommError(
      rank_prefix(args.rank) + "the ranks of group '" + args.group_name +
      "' cannot use backend '" + std::string(name) + "': " + reasons +
      "; choose another backend, or auto");
}

std::unique_ptr<Communicator> make_by_auto(const BackendArgs& args) {
  std::vector<Backend> tried = registered();
  std::erase_if(tried, [](const Backend& backend) {
    return !backend.place_in_auto.has_value();
  });
  std::sort(tried.begin(), tried.end(), [](const auto& a, const auto& b) {
    return *a.place_in_auto < *b.place_in_auto;
  });
  std::string reasons;
  for (const Backend& backend : tried) {
    MadeCommunicator made = backend.factory(args);
    if (made.communicator) {
      return std::move(made.communicator);
    }
    reasons +=
        (reasons.empty() ? "" : "; ") + backend.name + ": " + made.why_not;
  }
  throw_unusable(args, "auto", reasons);
}

} // namespace

void register_backend(Backend backend) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const bool is_known = std::any_of(
      all.backends.begin(), all.backends.end(), [&](const Backend& known) {
        return known.name == backend.name;
      });
  if (!is_known) {
    all.backends.push_back(std::move(backend));
  }
}

// self is for one rank only, and inproc, for tests, is asked for by name.
void register_host_backends() {
  register_backend({"self", host::make_self, std::nullopt});
  register_backend({"inproc", host::make_inproc, std::nullopt});
  register_backend({"shm", host::make_shm, 0});
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend& backend : registered()) {
    names.push_back(backend.name);
  }
  return names;
}

std::unique_ptr<Communicator> make_communicator(
    std::string_view name, const BackendArgs& args) {
  register_host_backends();
  if (name == "auto") {
    return args.size == 1 ? host::make_self(args).communicator
                          : make_by_auto(args);
  }
  std::string names = "auto";
  for (const Backend& backend : registered()) {
    if (backend.name != name) {
      names += ", " + backend.name;
      continue;
    }
    MadeCommunicator made = backend.factory(args);
    if (made.communicator) {
      return std::move(made.communicator);
    }
    throw_unusable(args, name, made.why_not);
  }
  throw ConfigError(
      rank_prefix(args.rank) + "unknown backend '" + std::string(name) +
      "'; the backends are " + names);
}

} // namespace fsdp
