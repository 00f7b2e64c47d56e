// The only file that sees Gloo. LibTorch has Gloo's code but not its headers;
// those of the distribution are older than the code, so that nothing of Gloo's
// own classes is called here: only c10d's, whose headers come with LibTorch.

#include "comm/c10d/gloo_backend.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend.h"
#include "comm/c10d/gloo_communicator.h"
#include "comm/c10d/message_link.h"
#include "comm/c10d/sigpipe.h"
#include "comm/c10d/sockets.h"
#include "comm/error_text.h"
#include "comm/join.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Millis = std::chrono::milliseconds;

/// The group's store as Gloo's connecting code wants it.
class StoreForGloo final : public c10d::Store {
 public:
  StoreForGloo(std::shared_ptr<fsdp::Store> store, Millis timeout)
      : c10d::Store(timeout), store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreForGloo>(store_, timeout_);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, std::string(value.begin(), value.end()));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(key, timeout_, kWhat);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }
  void wait(
      const std::vector<std::string>& keys, const Millis& timeout) override {
    for (const std::string& key : keys) {
      store_->get(key, std::min(timeout, timeout_), kWhat);
    }
  }
  bool check(const std::vector<std::string>&) override {
    return refuse("check");
  }
  int64_t add(const std::string&, int64_t) override { return refuse("add"); }
  bool deleteKey(const std::string&) override { return refuse("deleteKey"); }
  int64_t getNumKeys() override { return refuse("getNumKeys"); }

 private:
  static constexpr std::string_view kWhat = "a rank's address for Gloo";

  [[noreturn]] static int refuse(const char* call) {
    throw CommError(std::string("Gloo needs the store's ") + call);
  }

  std::shared_ptr<fsdp::Store> store_;
};

class GlooTransfer final : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work)
      : work_(std::move(work)) {}

  bool wait() override {
    // A timeout of Gloo's own would close every connection of the group, with
    // a text that names nobody.
    constexpr Millis kNever = std::chrono::hours(24 * 365);
    try {
      return work_->wait(kNever);
    } catch (const std::exception& error) {
      throw ConnectionLost(error.what());
    }
  }
  void interrupt() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooLink final : public MessageLink {
 public:
  explicit GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : gloo_(std::move(gloo)) {}

  std::unique_ptr<Transfer> send(
      int peer, Lane lane, const void* data, std::size_t bytes) override {
    auto tensors = as_bytes(const_cast<void*>(data), bytes);
    return post([&] { return gloo_->send(tensors, peer, tag_of(lane)); });
  }
  std::unique_ptr<Transfer> receive(
      int peer, Lane lane, void* data, std::size_t bytes) override {
    auto tensors = as_bytes(data, bytes);
    return post([&] { return gloo_->recv(tensors, peer, tag_of(lane)); });
  }

 private:
  static int tag_of(Lane lane) { return static_cast<int>(lane); }
  static std::vector<at::Tensor> as_bytes(void* data, std::size_t bytes) {
    return {at::from_blob(
        data,
        {static_cast<std::int64_t>(bytes)},
        at::TensorOptions(at::kByte))};
  }
  template <typename Function>
  std::unique_ptr<Transfer> post(Function function) {
    try {
      return std::make_unique<GlooTransfer>(function());
    } catch (const std::exception& error) {
      throw ConnectionLost(error.what());
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

using Gloo = c10d::ProcessGroupGloo;

/// [collective] The address on which this rank would listen by itself. Every
/// rank takes part, also one that is told where to listen: others look for
/// their own address on the way to this one.
std::string address_of_this_rank(const BackendArgs& args) {
  const std::string own = local_address_towards(args.master_addr);
  const auto key = [](int rank) { return "address/" + std::to_string(rank); };
  args.store->set(key(args.rank), own);
  std::vector<std::string> others;
  for (int r = 0; r < args.size; ++r) {
    others.push_back(args.store->get(
        key(r), args.timeout, "rank " + std::to_string(r) + " to connect"));
  }
  return address_for_peers(own, others);
}

void add_interfaces(
    const BackendArgs& args, std::string names, Gloo::Options& options) {
  while (!names.empty()) {
    const auto comma = names.find(',');
    const std::string name = names.substr(0, comma);
    names = comma == std::string::npos ? "" : names.substr(comma + 1);
    try {
      options.devices.push_back(Gloo::createDeviceForInterface(name));
    } catch (const std::exception&) {
      throw ConfigError(
          rank_prefix(args.rank) + "GLOO_SOCKET_IFNAME names '" + name +
          "', which is no network interface of this host with an address; "
          "correct or unset it");
    }
  }
}

void add_devices(
    const BackendArgs& args,
    const std::string& address,
    Gloo::Options& options) {
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces != nullptr && *interfaces != '\0') {
    add_interfaces(args, interfaces, options);
    return;
  }
  try {
    options.devices.push_back(Gloo::createDeviceForHostname(address));
  } catch (const std::exception&) {
    throw ConfigError(
        rank_prefix(args.rank) + "cannot listen on " + address +
        ", this host's address on the way to the master; set "
        "GLOO_SOCKET_IFNAME to the network interface that joins the hosts");
  }
}

/// [collective] Throws on every rank if one of them has nowhere to listen:
/// Gloo's connecting would let the others wait for it until their deadline.
void add_devices_together(const BackendArgs& args, Gloo::Options& options) {
  constexpr const char* kQuestion = "gloo.listening";
  constexpr std::size_t kMaxBytes = 1000;
  const std::string address = address_of_this_rank(args);
  try {
    add_devices(args, address, options);
  } catch (const ConfigError& error) {
    agree(args, kQuestion, failure_line(args.rank, error.what(), kMaxBytes));
    throw;
  }
  if (const std::string verdict = agree(args, kQuestion, "");
      !verdict.empty()) {
    throw PeerError(
        rank_prefix(args.rank) + "group '" + args.group_name +
        "' cannot connect: " + verdict);
  }
}

std::unique_ptr<MessageLink> connect(const BackendArgs& args) {
  auto options = Gloo::Options::create(args.timeout);
  options->threads = 1; // runs collectives of Gloo, of which there are none
  add_devices_together(args, *options);
  try {
    return std::make_unique<GlooLink>(c10::make_intrusive<Gloo>(
        c10::make_intrusive<StoreForGloo>(
            prefixed(args.store, "gloo/"), args.timeout),
        args.rank,
        args.size,
        options));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    throw TimeoutError(
        rank_prefix(args.rank) + "the ranks of group '" + args.group_name +
        "' could not connect to each other within " + time_text(args.timeout) +
        "; see whether all still run, and set GLOO_SOCKET_IFNAME to the "
        "network interface that joins their hosts");
  }
}

MadeCommunicator make_gloo(const BackendArgs& args) {
  const SigpipeBlock for_threads_of_gloo;
  return {
      .communicator = std::make_unique<GlooCommunicator>(
          args.rank,
          args.size,
          args.timeout,
          args.group_name,
          args.size == 1 ? nullptr : connect(args))};
}

} // namespace

void register_gloo_backend() {
  constexpr int kAfterThoseOfOneHost = 100;
  register_backend({"gloo", make_gloo, kAfterThoseOfOneHost});
}

} // namespace fsdp
