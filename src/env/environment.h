#pragma once
// Which rank of which job this process is, from the variables of its launcher.
// The first row whose first variable is set decides:
//
//   RANK or WORLD_SIZE     fsdp run, torchrun, or set by hand: RANK,
//                          WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
//                          MASTER_ADDR, MASTER_PORT (the last four optional for
//                          a world of one); torchrun's TORCHELASTIC_RUN_ID and
//                          TORCHELASTIC_USE_AGENT_STORE, fsdp run's FSDP_RUN
//                          and FSDP_MASTER_LISTEN_FD
//   OMPI_COMM_WORLD_RANK   Open MPI: OMPI_COMM_WORLD_SIZE, ..._LOCAL_RANK,
//                          ..._LOCAL_SIZE
//   SLURM_PROCID           srun, recognised by SLURM_STEP_ID (a batch script is
//                          no rank): SLURM_STEP_NUM_TASKS or SLURM_NTASKS,
//                          SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_NODELIST or
//                          SLURM_JOB_NODELIST, SLURM_STEP_TASKS_PER_NODE or
//                          SLURM_TASKS_PER_NODE
//   PMI_RANK               MPICH, Intel MPI: PMI_SIZE, MPI_LOCALRANKID,
//                          MPI_LOCALNRANKS
//   none                   a world of one
//
// Under mpirun and srun, MASTER_ADDR and MASTER_PORT are taken where they are
// set. Otherwise the address is 127.0.0.1 (srun: the first host of the list)
// and the port follows from the job's id, 20000 to 31999: below the range from
// which Linux takes the ports of outgoing connections.

#include <optional>
#include <string>

namespace fsdp {

struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1"; ///< as given: never looked up here
  int master_port = 0;                   ///< 0 only in a world of one
  /// A socket that already listens on master_port, handed down by `fsdp run` to
  /// rank 0 (FSDP_MASTER_LISTEN_FD), so that nobody can take the port between.
  /// Closed on exec from now on; the caller owns it. Empty, too, if a program
  /// between the launcher and this one closed it: rank 0 then binds the port.
  std::optional<int> master_listen_fd;
  /// torchrun's agent already serves the store (TORCHELASTIC_USE_AGENT_STORE).
  bool store_is_external = false;
  /// "fsdp run", "torchrun", "environment" (set by hand), "mpirun", "srun" or
  /// "none".
  std::string launcher = "none";
};

/// Throws ConfigError naming the variable, what it holds and what it should: a
/// rank outside [0, WORLD_SIZE), a number that is none, a variable missing
/// beside the others.
LaunchEnvironment read_launch_environment();

} // namespace fsdp
