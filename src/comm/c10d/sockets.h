#pragma once
// The few sockets that we open ourselves, so that what goes wrong with them is
// told in our words: LibTorch's texts carry stack traces and the results of
// reverse look-ups.

#include <chrono>
#include <string>

namespace fsdp {

/// Owns a file descriptor.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

/// A socket that listens on `host`:`port`. Only on that address if it is this
/// host's, else (a name of a proxy, a forwarded address) on all of them. Throws
/// ConfigError if the name is unknown or the port is taken; `rank` is for the
/// text.
UniqueFd listen_on(const std::string& host, int port, int rank);

/// Returns once something accepts connections at `host`:`port`. Throws
/// ConfigError for an unknown name and TimeoutError after `timeout`.
void wait_for_listener(
    const std::string& host,
    int port,
    int rank,
    std::chrono::milliseconds timeout);

/// The address of this host, in digits, from which `host` is reached.
/// "127.0.0.1" if `host` is empty or not to be reached.
std::string local_address_towards(const std::string& host);

} // namespace fsdp
