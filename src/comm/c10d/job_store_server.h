#pragma once
// The server's side of job_store.h: a thread that answers all clients.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/c10d/job_store.h"
#include "comm/c10d/sockets.h"

namespace fsdp {

class JobStoreServer {
 public:
  /// `listener` listens already. Serves worlds up to this generation.
  JobStoreServer(UniqueFd listener, std::uint32_t generation);
  JobStoreServer(const JobStoreServer&) = delete;
  JobStoreServer& operator=(const JobStoreServer&) = delete;
  /// Closes all connections.
  ~JobStoreServer();

  /// A connection for this process, without the network. Any thread.
  UniqueFd connect_locally();
  /// Any thread.
  void serve_generation(std::uint32_t generation);

 private:
  struct Client {
    UniqueFd fd;
    std::string received; ///< less than a frame
    std::string to_send;
  };
  struct Waiter {
    std::weak_ptr<Client> client;
    std::uint32_t id;
  };

  void run();
  bool has_ended();
  void accept_client();
  void add_client(UniqueFd fd);
  bool read_from(const std::shared_ptr<Client>& client);
  bool answer_frames(const std::shared_ptr<Client>& client);
  bool answer(
      const std::shared_ptr<Client>& client,
      const JobStoreFrame& request,
      std::string key,
      std::string value);
  static void reply(
      Client& client,
      JobStoreCall call,
      std::uint32_t id,
      const std::string& value);
  static bool write_to(Client& client);

  UniqueFd listener_;
  UniqueFd wake_read_;
  UniqueFd wake_write_; ///< closed to end the thread
  std::atomic<std::uint32_t> generation_;
  std::mutex mutex_;
  std::vector<UniqueFd> arriving_; ///< guarded by mutex_
  std::vector<std::shared_ptr<Client>> clients_;
  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiter> waiters_;
  std::thread thread_;
};

} // namespace fsdp
