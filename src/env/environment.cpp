#include "env/environment.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "core/parse_int.h"
#include "env/master_socket.h"
#include "env/slurm_list.h"
#include "fsdp/error.h"

namespace fsdp {

namespace {

constexpr int kFirstDerivedPort = 20000;
constexpr int kNumDerivedPorts = 12000;

constexpr const char* kAllByHand =
    "set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT together, or start the program with fsdp run";
constexpr const char* kKeepMpi =
    "start the program with mpirun and keep all variables that it sets";
constexpr const char* kKeepSlurm =
    "start the program with srun and keep all variables that it sets";

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  return std::string(value);
}

[[noreturn]] void reject(
    std::string_view name,
    const std::string& value,
    const std::string& expected) {
  throw ConfigError(
      std::string(name) + " is \"" + value + "\": expected " + expected);
}

/// The variables of one launcher: `anchor` is set, the others must be.
class Reader {
 public:
  Reader(const char* anchor, const char* advice)
      : anchor_(anchor), advice_(advice) {}

  /// The first of the names that is set, as (name, value).
  std::pair<const char*, std::string> text(
      std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (auto value = variable(name)) {
        return {name, *value};
      }
    }
    std::string all;
    for (const char* name : names) {
      all += (all.empty() ? "" : " or ") + std::string(name);
    }
    throw ConfigError(
        all + " is not set, though " + anchor_ + " is: " + advice_);
  }

  int count(std::initializer_list<const char*> names, int max = INT_MAX) const {
    const auto [name, value] = text(names);
    const auto number = parse_int(value);
    if (!number || *number < 1 || *number > max) {
      const bool is_too_large = !number && is_digits(value);
      reject(
          name,
          value,
          max == INT_MAX && !is_too_large
              ? "a whole number of at least 1"
              : "a whole number from 1 to " + std::to_string(max));
    }
    return *number;
  }

  /// In [0, size), where `size` is what `size_name` holds.
  int index(
      std::initializer_list<const char*> names,
      int size,
      std::string_view size_name) const {
    const auto [name, value] = text(names);
    const auto number = parse_int(value);
    if (!number || *number < 0 || *number >= size) {
      reject(
          name,
          value,
          "a whole number from 0 to " + std::to_string(size - 1) + ", as " +
              std::string(size_name) + " is " + std::to_string(size));
    }
    return *number;
  }

 private:
  const char* anchor_;
  const char* advice_;
};

std::string checked_address(const char* name, std::string address) {
  if (address.empty()) {
    reject(name, address, "an address or a host name");
  }
  return address;
}

int port_variable(const Reader& reader) {
  return reader.count({"MASTER_PORT"}, 65535);
}

/// The same on every rank of a job; two jobs rarely share one.
int derived_port(std::string_view job_id) {
  return kFirstDerivedPort + static_cast<int>(fnv1a(job_id) % kNumDerivedPorts);
}

/// `fd` if it is a socket that listens on `port`.
std::optional<int> adopt_listener(int fd, int port) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
      listens == 0) {
    return std::nullopt;
  }
  if (bound_port(fd) != port) {
    return std::nullopt;
  }
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

void read_handed_down(LaunchEnvironment& env) {
  if (const auto agent = variable("TORCHELASTIC_USE_AGENT_STORE")) {
    if (*agent != "True" && *agent != "False") {
      reject("TORCHELASTIC_USE_AGENT_STORE", *agent, "True or False");
    }
    env.store_is_external = *agent == "True";
  }
  const auto listener = variable("FSDP_MASTER_LISTEN_FD");
  if (listener && env.rank == 0) {
    const auto fd = parse_int(*listener);
    if (!fd || *fd < 0) {
      reject(
          "FSDP_MASTER_LISTEN_FD",
          *listener,
          "the number of an open descriptor");
    }
    env.master_listen_fd = adopt_listener(*fd, env.master_port);
  }
}

LaunchEnvironment read_plain() {
  const Reader reader(variable("RANK") ? "RANK" : "WORLD_SIZE", kAllByHand);
  LaunchEnvironment env;
  env.launcher = variable("TORCHELASTIC_RUN_ID") ? "torchrun"
                 : variable("FSDP_RUN")          ? "fsdp run"
                                                 : "environment";
  env.world_size = reader.count({"WORLD_SIZE"});
  env.rank = reader.index({"RANK"}, env.world_size, "WORLD_SIZE");
  const bool alone = env.world_size == 1;
  if (!alone || variable("LOCAL_WORLD_SIZE")) {
    env.local_world_size = reader.count({"LOCAL_WORLD_SIZE"}, env.world_size);
  }
  if (!alone || variable("LOCAL_RANK")) {
    env.local_rank =
        reader.index({"LOCAL_RANK"}, env.local_world_size, "LOCAL_WORLD_SIZE");
  }
  if (!alone || variable("MASTER_ADDR")) {
    env.master_addr =
        checked_address("MASTER_ADDR", reader.text({"MASTER_ADDR"}).second);
  }
  if (!alone || variable("MASTER_PORT")) {
    env.master_port = port_variable(reader);
  }
  read_handed_down(env);
  return env;
}

struct MpiNames {
  const char* rank;
  const char* size;
  std::initializer_list<const char*> local_rank;
  std::initializer_list<const char*> local_size;
};

/// What tells this job from others on the host. Only an id that all hosts of
/// the job share can serve several hosts.
std::optional<std::string> mpi_job_id(bool one_host) {
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    if (auto id = variable(name)) {
      return id;
    }
  }
  // MPICH's proxy is the parent of all ranks of the host.
  if (one_host) {
    return std::to_string(getppid());
  }
  return std::nullopt;
}

LaunchEnvironment read_mpi(const MpiNames& names) {
  const Reader reader(names.rank, kKeepMpi);
  LaunchEnvironment env;
  env.launcher = "mpirun";
  env.world_size = reader.count({names.size});
  env.rank = reader.index({names.rank}, env.world_size, names.size);
  const char* local_size_name = reader.text(names.local_size).first;
  env.local_world_size = reader.count(names.local_size, env.world_size);
  env.local_rank =
      reader.index(names.local_rank, env.local_world_size, local_size_name);
  const bool one_host = env.local_world_size == env.world_size;
  const auto job_id = mpi_job_id(one_host);
  const auto require = [&](const char* name, const char* what) {
    throw ConfigError(
        std::string(name) + " is not set and this host runs " +
        std::to_string(env.local_world_size) + " of " +
        std::to_string(env.world_size) + " ranks: set it to " + what +
        " for every rank (mpirun -x " + name + "=...)");
  };
  if (const auto address = variable("MASTER_ADDR")) {
    env.master_addr = checked_address("MASTER_ADDR", *address);
  } else if (!one_host) {
    require("MASTER_ADDR", "the address of the host of rank 0");
  }
  if (variable("MASTER_PORT")) {
    env.master_port = port_variable(reader);
  } else if (job_id) {
    env.master_port = derived_port(*job_id);
  } else {
    require("MASTER_PORT", "a free port there");
  }
  return env;
}

int slurm_local_world_size(const Reader& reader, int world_size) {
  const auto [name, value] =
      reader.text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const auto tasks = detail::slurm_tasks_per_node(value);
  if (!tasks) {
    reject(name, value, "counts such as 2(x3),1");
  }
  const int node = reader.index(
      {"SLURM_NODEID"},
      static_cast<int>(tasks->size()),
      "the number of nodes in " + std::string(name));
  const int local = (*tasks)[static_cast<std::size_t>(node)];
  if (local > world_size) {
    reject(
        name,
        value,
        "at most " + std::to_string(world_size) + " tasks on a node");
  }
  return local;
}

LaunchEnvironment read_slurm() {
  const Reader reader("SLURM_PROCID", kKeepSlurm);
  LaunchEnvironment env;
  env.launcher = "srun";
  const char* size_name = variable("SLURM_STEP_NUM_TASKS")
                              ? "SLURM_STEP_NUM_TASKS"
                              : "SLURM_NTASKS";
  env.world_size = reader.count({size_name});
  env.rank = reader.index({"SLURM_PROCID"}, env.world_size, size_name);
  env.local_world_size = slurm_local_world_size(reader, env.world_size);
  env.local_rank = reader.index(
      {"SLURM_LOCALID"}, env.local_world_size, "the number of tasks here");
  if (const auto address = variable("MASTER_ADDR")) {
    env.master_addr = checked_address("MASTER_ADDR", *address);
  } else {
    const auto [name, value] =
        reader.text({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
    const auto host = detail::first_slurm_host(value);
    if (!host) {
      reject(name, value, "a list of hosts such as node[01-03,07]");
    }
    env.master_addr = *host;
  }
  env.master_port = variable("MASTER_PORT")
                        ? port_variable(reader)
                        : derived_port(
                              reader.text({"SLURM_JOB_ID"}).second + "." +
                              reader.text({"SLURM_STEP_ID"}).second);
  return env;
}

} // namespace

LaunchEnvironment read_launch_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) {
    return read_plain();
  }
  if (variable("OMPI_COMM_WORLD_RANK")) {
    return read_mpi(
        {"OMPI_COMM_WORLD_RANK",
         "OMPI_COMM_WORLD_SIZE",
         {"OMPI_COMM_WORLD_LOCAL_RANK"},
         {"OMPI_COMM_WORLD_LOCAL_SIZE"}});
  }
  const bool hydra = variable("PMI_RANK") && variable("MPI_LOCALRANKID");
  // MPICH's own launcher may run its proxies with srun: then the rank is PMI's.
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_ID") && !hydra) {
    return read_slurm();
  }
  if (variable("PMI_RANK")) {
    return read_mpi(
        {"PMI_RANK",
         "PMI_SIZE",
         {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
         {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}});
  }
  return {};
}

} // namespace fsdp
