// How processes of one host become a group: "on one host" is a successful
// exchange of descriptors, not a host name.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>

#include "comm/host/factories.h"
#include "comm/host/host_communicator.h"
#include "comm/host/shm_link.h"
#include "comm/join.h"
#include "fsdp/error.h"

namespace fsdp::host {

namespace {

constexpr std::uint64_t kControlTag = 0;

bool is_disabled() {
  const char* value = std::getenv("FSDP_DISABLE_SHM");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

// One rank's way into the group. Each step is a question to all ranks; a step
// that throws CommError is this rank's objection.
class Joining {
 public:
  explicit Joining(const BackendArgs& args)
      : args_(args), processes_(static_cast<std::size_t>(args.size)) {}

  MadeCommunicator join() {
    if (step("shm.connected", [&] { connect(); }) &&
        step("shm.sent", [&] { send_all(); }) &&
        step("shm.mapped", [&] { receive(); })) {
      return {
          .communicator = std::make_unique<HostCommunicator>(
              args_.rank,
              args_.size,
              "shm",
              args_.timeout,
              std::move(control_),
              std::make_unique<ShmLink>(
                  std::move(sockets_), std::move(processes_)))};
    }
    return {.why_not = std::move(verdict_)};
  }

 private:
  bool step(const std::string& key, const std::function<void()>& action) {
    std::string objection;
    try {
      action();
    } catch (const TimeoutError&) {
      throw; // of the store: there is nobody to object to
    } catch (const CommError& error) {
      objection = error.what();
    }
    verdict_ = agree(args_, key, objection);
    return verdict_.empty();
  }

  void connect() {
    const bool may_join = !is_disabled();
    if (args_.rank == 0) {
      const std::string name = may_join ? random_socket_name() : "";
      try {
        if (may_join) {
          listener_ = listen_at(name, args_.size);
        }
      } catch (const CommError&) {
        args_.store->set("shm.name", "-");
        throw;
      }
      args_.store->set("shm.name", '+' + name);
    } else {
      const std::string name =
          args_.store->get("shm.name", args_.timeout, joining(args_, 0));
      if (may_join && name.size() > 1) {
        sockets_.push_back(connect_to(name.substr(1)));
        send_descriptors(
            sockets_[0], static_cast<std::uint64_t>(args_.rank), {});
      }
    }
    if (!may_join) {
      throw CommError("FSDP_DISABLE_SHM is set");
    }
  }

  // All others have connected and said who they are.
  void send_all() {
    if (args_.rank != 0) {
      return;
    }
    sockets_.resize(static_cast<std::size_t>(args_.size - 1));
    processes_[0] = open_pid(getpid());
    for (int missing = args_.size - 1; missing > 0; --missing) {
      UniqueFd socket = accept_from(listener_);
      if (!socket) {
        throw CommError("a connected rank has gone");
      }
      const std::uint64_t rank = receive_descriptors(socket).tag;
      if (rank == 0 || rank > sockets_.size() || sockets_[rank - 1]) {
        throw CommError("a stranger has connected to rank 0");
      }
      processes_[rank] = open_peer_pid(socket);
      sockets_[rank - 1] = std::move(socket);
    }
    control_ = SharedRegion::create(
        ControlLayout::bytes(args_.size), "the ranks' meeting place");
    std::vector<int> descriptors = {control_->fd()};
    for (const UniqueFd& process : processes_) {
      descriptors.push_back(process.get());
    }
    for (const UniqueFd& socket : sockets_) {
      for (std::size_t i = 0; i < descriptors.size();
           i += kMaxSentDescriptors) {
        send_descriptors(
            socket,
            kControlTag,
            std::span(descriptors)
                .subspan(
                    i, std::min(kMaxSentDescriptors, descriptors.size() - i)));
      }
    }
  }

  void receive() {
    if (args_.rank == 0) {
      return;
    }
    std::vector<UniqueFd> descriptors;
    while (descriptors.size() < processes_.size() + 1) {
      for (UniqueFd& fd : receive_descriptors(sockets_[0]).descriptors) {
        descriptors.push_back(std::move(fd));
      }
    }
    control_ = SharedRegion::adopt(
        descriptors[0].release(), ControlLayout::bytes(args_.size));
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      processes_[rank] = std::move(descriptors[rank + 1]);
    }
  }

  const BackendArgs& args_;
  std::string verdict_; // of the last step
  UniqueFd listener_;   // rank 0
  std::vector<UniqueFd> sockets_;
  std::vector<UniqueFd> processes_; // by rank
  std::shared_ptr<SharedRegion> control_;
};

} // namespace

MadeCommunicator make_shm(const BackendArgs& args) {
  return Joining(args).join();
}

} // namespace fsdp::host
