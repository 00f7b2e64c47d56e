// Ranks within one process: self, and inproc with its threads.

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "comm/host/factories.h"
#include "comm/host/host_communicator.h"
#include "comm/join.h"
#include "fsdp/error.h"

namespace fsdp::host {

namespace {

class SelfLink final : public HostLink {
 public:
  void offer(std::uint64_t, const std::shared_ptr<SharedRegion>&) override {}
  std::shared_ptr<SharedRegion> take(std::uint64_t, std::size_t) override {
    return nullptr; // there is no other rank
  }
  void find_ended(std::span<char>) override {}
};

// What the threads of one group hold in common.
struct Hub {
  explicit Hub(int num_ranks)
      : size(num_ranks),
        control(SharedRegion::create(
            ControlLayout::bytes(num_ranks), "the ranks' meeting place")) {}

  const int size;
  const std::shared_ptr<SharedRegion> control;
  std::mutex mutex;
  std::uint64_t tag = 0;
  std::shared_ptr<SharedRegion> offered;
  int num_to_take = 0;
};

class InprocLink final : public HostLink {
 public:
  explicit InprocLink(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  void offer(
      std::uint64_t tag, const std::shared_ptr<SharedRegion>& region) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->tag = tag;
    hub_->num_to_take = hub_->size - 1;
    hub_->offered = hub_->num_to_take > 0 ? region : nullptr;
  }

  std::shared_ptr<SharedRegion> take(std::uint64_t tag, std::size_t) override {
    const std::lock_guard lock(hub_->mutex);
    if (hub_->tag != tag || hub_->offered == nullptr) {
      throw CommError("rank 0 has not offered the shared region");
    }
    if (--hub_->num_to_take == 0) {
      return std::exchange(hub_->offered, nullptr);
    }
    return hub_->offered;
  }

  // A thread cannot end without its communicator, which says so.
  void find_ended(std::span<char>) override {}

 private:
  const std::shared_ptr<Hub> hub_;
};

// Hubs of groups that are being joined, by number.
class HubDirectory {
 public:
  static HubDirectory& instance() {
    static HubDirectory directory;
    return directory;
  }

  std::uint64_t add(const std::shared_ptr<Hub>& hub) {
    const std::lock_guard lock(mutex_);
    hubs_[++last_] = hub;
    return last_;
  }

  std::shared_ptr<Hub> find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = hubs_.find(number);
    return found == hubs_.end() ? nullptr : found->second.lock();
  }

  void remove(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    hubs_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::weak_ptr<Hub>> hubs_;
};

// Removes the hub from the directory however joining ends.
class Announcement {
 public:
  explicit Announcement(const std::shared_ptr<Hub>& hub)
      : number_(HubDirectory::instance().add(hub)) {}
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;
  ~Announcement() { HubDirectory::instance().remove(number_); }

  std::string text() const {
    return std::to_string(getpid()) + ' ' + std::to_string(number_);
  }

 private:
  const std::uint64_t number_;
};

std::shared_ptr<Hub> find_hub(
    const std::string& announced, std::string& objection) {
  std::istringstream words(announced);
  long pid = 0;
  std::uint64_t number = 0;
  words >> pid >> number;
  auto hub = pid == getpid() ? HubDirectory::instance().find(number) : nullptr;
  if (hub == nullptr) {
    objection = "it is process " + std::to_string(getpid()) +
                ", rank 0 is process " + std::to_string(pid) +
                "; ranks of inproc are threads of one process";
  }
  return hub;
}

} // namespace

MadeCommunicator make_self(const BackendArgs& args) {
  if (args.size != 1) {
    return {
        .why_not =
            "it is for one rank, and there are " + std::to_string(args.size)};
  }
  return {
      .communicator = std::make_unique<HostCommunicator>(
          0,
          1,
          "self",
          args.timeout,
          SharedRegion::create(ControlLayout::bytes(1), "the meeting place"),
          std::make_unique<SelfLink>())};
}

MadeCommunicator make_inproc(const BackendArgs& args) {
  std::string objection;
  std::shared_ptr<Hub> hub;
  std::unique_ptr<Announcement> announcement;
  if (args.rank == 0) {
    hub = std::make_shared<Hub>(args.size);
    announcement = std::make_unique<Announcement>(hub);
    args.store->set("inproc.hub", announcement->text());
  } else {
    hub = find_hub(
        args.store->get("inproc.hub", args.timeout, joining(args, 0)),
        objection);
  }
  std::string verdict = agree(args, "inproc.joined", objection);
  if (!verdict.empty()) {
    return {.why_not = std::move(verdict)};
  }
  return {
      .communicator = std::make_unique<HostCommunicator>(
          args.rank,
          args.size,
          "inproc",
          args.timeout,
          hub->control,
          std::make_unique<InprocLink>(hub))};
}

} // namespace fsdp::host
