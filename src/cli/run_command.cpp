#include "cli/run_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "launch/run_job.h"

namespace fsdp::cli {

namespace {

constexpr const char* kFooter = R"(
Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set, and OMP_NUM_THREADS = usable cores / ranks unless you set it
(fsdp train takes yours, and else 1 thread a rank: see its --threads).
Its lines come behind "[rank r] ". The first rank that fails ends the others;
the exit status is that rank's, 128 + signal where a signal ended it. SIGINT and
SIGTERM go to all ranks, a second one kills them.

  fsdp run -n 2 -- ./program --flag
  fsdp run -n 4 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 \
      --master-port 29500 -- ./program        (node 1: --node-rank 1)
)";

} // namespace

void register_run(
    CLI::App& app, std::vector<std::string> program, int& exit_status) {
  CLI::App* run = app.add_subcommand(
      "run",
      "Start the ranks of a job: fsdp run [options] -- program [arguments]");
  auto options = std::make_shared<RunOptions>();
  options->program = std::move(program);
  run->footer(kFooter);
  run->add_option("-n,--ranks", options->num_ranks, "Ranks on this node")
      ->capture_default_str();
  run->add_option("--nnodes", options->num_nodes, "Nodes of the job")
      ->capture_default_str();
  run->add_option("--node-rank", options->node_rank, "This node, from 0")
      ->capture_default_str();
  run->add_option(
      "--master-addr",
      options->master_addr,
      "Address of node 0 (one node: 127.0.0.1)");
  run->add_option(
      "--master-port",
      options->master_port,
      "Port of node 0 (one node: 0 or none takes a free one)");
  run->add_option(
      "--log-dir",
      options->log_dir,
      "Folder for rank-<r>.log, the whole output of each rank");
  run->callback([options, &exit_status] { exit_status = run_job(*options); });
}

} // namespace fsdp::cli
