#include "comm/backend.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "comm/error_text.h"
#include "comm/host/factories.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

struct Backend {
  std::string name;
  BackendFactory factory;
};

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

// inproc is for tests and is asked for by name; self is for one rank only.
bool is_tried_by_auto(const std::string& name) {
  return name != "self" && name != "inproc";
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
  std::string reasons;
  for (const Backend& backend : registered()) {
    if (!is_tried_by_auto(backend.name)) {
      continue;
    }
    std::string reason = "no reason given";
    BackendArgs attempt = args;
    attempt.why_not = &reason;
    if (auto communicator = backend.factory(attempt)) {
      return communicator;
    }
    reasons += (reasons.empty() ? "" : "; ") + backend.name + ": " + reason;
  }
  throw_unusable(args, "auto", reasons);
}

} // namespace

void register_backend(std::string name, BackendFactory factory) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const bool is_known = std::any_of(
      all.backends.begin(), all.backends.end(), [&](const Backend& backend) {
        return backend.name == name;
      });
  if (!is_known) {
    all.backends.push_back({std::move(name), factory});
  }
}

void register_host_backends() {
  register_backend("self", host::make_self);
  register_backend("inproc", host::make_inproc);
  register_backend("shm", host::make_shm);
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
    return args.size == 1 ? host::make_self(args) : make_by_auto(args);
  }
  std::string names = "auto";
  for (const Backend& backend : registered()) {
    if (backend.name != name) {
      names += ", " + backend.name;
      continue;
    }
    std::string reason = "no reason given";
    BackendArgs attempt = args;
    attempt.why_not = &reason;
    if (auto communicator = backend.factory(attempt)) {
      return communicator;
    }
    throw_unusable(args, name, reason);
  }
  throw ConfigError(
      rank_prefix(args.rank) + "unknown backend '" + std::string(name) +
      "'; the backends are " + names);
}

} // namespace fsdp
