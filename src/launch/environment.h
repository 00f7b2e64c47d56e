#pragma once
// Which rank of which job this process is, from the variables of its launcher.

#include <optional>
#include <string>

namespace fsdp {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1"; ///< as given: never looked up here
  int master_port = 0; ///< 0 only in a world of one
  /// A socket that already listens on master_port, handed down by `fsdp run` to
  /// rank 0 (FSDP_MASTER_LISTEN_FD), so that nobody can take the port between.
  std::optional<int> master_listen_fd;
  /// torchrun's agent already serves the store (TORCHELASTIC_USE_AGENT_STORE).
  bool store_is_external = false;
  std::string launcher; ///< "fsdp run", "torchrun", "mpirun", "srun", "none"
};

/// Reads RANK, WORLD_SIZE, ... (fsdp run, torchrun), else OMPI_COMM_WORLD_*
/// (Open MPI), PMI_* (MPICH), else SLURM_* (srun), else a world of one. Throws
/// ConfigError naming the variable, what it holds and what it should: a rank
/// outside [0, WORLD_SIZE), a number that is none, a variable missing beside
/// the others.
LaunchEnvironment read_launch_environment();

} // namespace fsdp
