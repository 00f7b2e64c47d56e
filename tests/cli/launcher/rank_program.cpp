// A program for the launcher's tests. Its arguments are actions, done in order;
// "2:exit=3" is for rank 2 alone.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "env/environment.h"
#include "fsdp/error.h"

namespace {

using std::chrono::milliseconds;

int g_rank = 0;
std::vector<int> g_peers; // connections made by `meet`

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "-";
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void print_variables() {
  std::string line;
  for (const char* name :
       {"RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMP_NUM_THREADS"})
    line +=
        (line.empty() ? "" : " ") + std::string(name) + "=" + variable(name);
  say(line);
}

void print_environment() {
  const fsdp::LaunchEnvironment env = fsdp::read_launch_environment();
  say(env.launcher + ": rank " + std::to_string(env.rank) + "/" +
      std::to_string(env.world_size) + " local " +
      std::to_string(env.local_rank) + "/" +
      std::to_string(env.local_world_size) + " master " + env.master_addr +
      ":" + std::to_string(env.master_port) + " listener " +
      (env.master_listen_fd ? "yes" : "no") + " external " +
      (env.store_is_external ? "yes" : "no"));
}

[[noreturn]] void wait_for_ever() {
  // ThreadSanitizer runs a handler at the next call that it knows: a signal
  // that comes just before pause() would wait for another one.
  while (true)
    std::this_thread::sleep_for(milliseconds(20));
}

void crash() {
  signal(SIGSEGV, SIG_DFL); // a sanitizer's handler would exit
  raise(SIGSEGV);
}

/// A process that outlives its parent; with `daemon` in a session of its own
/// and with no descriptor of ours.
void start_child(bool daemon) {
  const pid_t child = fork();
  if (child == 0) {
    if (daemon) {
      setsid();
      if (fork() != 0)
        _exit(0);
      for (int fd = 0; fd < 64; ++fd)
        close(fd);
    }
    signal(SIGTERM, SIG_IGN);
    wait_for_ever();
  }
  if (daemon)
    waitpid(child, nullptr, 0);
}

void send_byte(int fd) {
  if (send(fd, "x", 1, MSG_NOSIGNAL) != 1)
    throw std::runtime_error("a peer is gone");
}

void receive_byte(int fd) {
  char byte = 0;
  if (recv(fd, &byte, 1, 0) != 1)
    throw fsdp::PeerDiedError("a peer is gone");
}

int connect_to_master(const fsdp::LaunchEnvironment& env) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(env.master_port));
  inet_pton(AF_INET, env.master_addr.c_str(), &address.sin_addr);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
        0)
      return fd;
    close(fd);
    std::this_thread::sleep_for(milliseconds(10)); // node 0 may start later
  }
  throw std::runtime_error(
      "cannot reach " + env.master_addr + ":" +
      std::to_string(env.master_port));
}

/// All ranks meet at the master port: a barrier with real connections.
void meet() {
  const fsdp::LaunchEnvironment env = fsdp::read_launch_environment();
  if (env.rank == 0) {
    if (!env.master_listen_fd)
      throw std::runtime_error("rank 0 has no listener");
    for (int i = 1; i < env.world_size; ++i) {
      g_peers.push_back(
          accept4(*env.master_listen_fd, nullptr, nullptr, SOCK_CLOEXEC));
      receive_byte(g_peers.back());
    }
    for (const int peer : g_peers)
      send_byte(peer);
  } else {
    g_peers.push_back(connect_to_master(env));
    send_byte(g_peers.back());
    receive_byte(g_peers.back());
  }
  say("met");
}

void throw_again(const std::exception& error) {
  if (dynamic_cast<const fsdp::PeerDiedError*>(&error))
    throw fsdp::PeerDiedError(error.what());
  throw std::runtime_error(error.what());
}

/// Runs into std::terminate, as a program without a catch does.
void leave_uncaught(const std::exception& error) noexcept {
  throw_again(error);
}

/// Waits until a peer's connection closes, then fails as a follower does:
/// "text": exit code 1 with the library's text; "uncaught": std::terminate;
/// else with that exit code and no word.
void follow(const std::string& how) {
  fd_set set;
  FD_ZERO(&set);
  int highest = 0;
  for (const int peer : g_peers) {
    FD_SET(peer, &set);
    highest = std::max(highest, peer);
  }
  select(highest + 1, &set, nullptr, nullptr, nullptr);
  if (how == "uncaught")
    leave_uncaught(fsdp::PeerDiedError("a peer is gone"));
  if (how == "text") {
    std::fprintf(
        stderr,
        "[rank %d] rank %d has exited, and is waited for in gather\n",
        g_rank,
        g_rank + 1);
    _exit(1);
  }
  _exit(std::stoi(how));
}

void print_lines(int count) {
  for (int i = 1; i <= count; ++i)
    std::printf("line %d\n", i);
  std::fflush(stdout);
}

void print_megabytes(int megabytes) {
  const std::string line(1023, static_cast<char>('a' + g_rank % 26));
  for (int i = 0; i < megabytes * 1024; ++i)
    std::puts(line.c_str());
  std::fflush(stdout);
}

void wait_for_file(const std::string& path) {
  struct stat status {};
  while (stat(path.c_str(), &status) != 0)
    std::this_thread::sleep_for(milliseconds(2));
}

/// Exits with the code at SIGTERM or SIGINT.
int g_code_at_signal = 0;
void exit_at_signal(const std::string& code) {
  g_code_at_signal = std::stoi(code);
  for (const int number : {SIGTERM, SIGINT})
    signal(number, [](int) {
      const char text[] = "caught\n";
      [[maybe_unused]] const ssize_t written =
          write(STDOUT_FILENO, text, sizeof(text) - 1);
      _exit(g_code_at_signal);
    });
}

/// "\r" and "\n" of the text are those characters.
void print_raw(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size();
    const char c = escape ? text[++i] : text[i];
    std::putchar(escape ? (c == 'r' ? '\r' : '\n') : c);
  }
  std::fflush(stdout);
}

using Action = std::function<void(const std::string& value)>;

const std::map<std::string, Action>& actions() {
  static const std::map<std::string, Action> all{
      {"print", [](const std::string& v) { say(v); }},
      {"raw", print_raw},
      {"complain",
       [](const std::string& v) { std::fprintf(stderr, "%s\n", v.c_str()); }},
      {"lines", [](const std::string& v) { print_lines(std::stoi(v)); }},
      {"megabytes",
       [](const std::string& v) { print_megabytes(std::stoi(v)); }},
      {"variables", [](const std::string&) { print_variables(); }},
      {"environment", [](const std::string&) { print_environment(); }},
      {"pid", [](const std::string&) { say(std::to_string(getpid())); }},
      {"input",
       [](const std::string&) {
         char text[64] = "";
         say(std::fgets(text, sizeof(text), stdin) ? text : "no input");
       }},
      {"meet", [](const std::string&) { meet(); }},
      {"follow", follow},
      {"wait", [](const std::string&) { wait_for_ever(); }},
      {"file", wait_for_file},
      {"touch",
       [](const std::string& v) {
         close(open(v.c_str(), O_WRONLY | O_CREAT, 0600));
       }},
      {"ignore",
       [](const std::string&) {
         signal(SIGTERM, SIG_IGN);
         signal(SIGINT, SIG_IGN);
       }},
      {"catch", exit_at_signal},
      {"child", [](const std::string&) { start_child(false); }},
      {"daemon", [](const std::string&) { start_child(true); }},
      {"segfault", [](const std::string&) { crash(); }},
      {"kill", [](const std::string& v) { raise(std::stoi(v)); }},
      {"exit", [](const std::string& v) { std::exit(std::stoi(v)); }},
      {"throw", [](const std::string& v) { throw std::runtime_error(v); }},
      {"uncaught",
       [](const std::string& v) { leave_uncaught(std::runtime_error(v)); }}};
  return all;
}

void perform(std::string action) {
  const size_t colon = action.find(':');
  if (colon != std::string::npos &&
      std::isdigit(static_cast<unsigned char>(action[0]))) {
    if (std::stoi(action) != g_rank)
      return;
    action = action.substr(colon + 1);
  }
  const size_t equals = action.find('=');
  const auto found = actions().find(action.substr(0, equals));
  if (found == actions().end())
    throw std::invalid_argument("no action " + action);
  found->second(equals == std::string::npos ? "" : action.substr(equals + 1));
}

} // namespace

int main(int argc, char** argv) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const char* rank = std::getenv("RANK");
  g_rank = rank ? std::atoi(rank) : 0;
  try {
    for (int i = 1; i < argc; ++i)
      perform(argv[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
