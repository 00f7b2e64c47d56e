#include "cli/run_command.h"

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "cli/option_value.h"
#include "core/parse_int.h"
#include "fsdp/error.h"
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

/// Reads the option into `number` if it is given.
template <typename Number>
void read_number(
    const CLI::Option& option, const std::string& expected, Number& number) {
  if (const auto text = value_of(option)) {
    const auto value = parse_int(*text);
    if (!value) {
      throw ConfigError(
          name_of(option) + " is \"" + *text + "\": expected " + expected);
    }
    number = *value;
  }
}

struct Flags {
  CLI::Option* num_ranks = nullptr;
  CLI::Option* num_nodes = nullptr;
  CLI::Option* node_rank = nullptr;
  CLI::Option* master_addr = nullptr;
  CLI::Option* master_port = nullptr;
  CLI::Option* log_dir = nullptr;
};

Flags add_flags(CLI::App& run) {
  const auto add = [&](const std::string& names,
                       const std::string& value,
                       const std::string& help) {
    return add_option(run, names, value, help);
  };
  Flags flags;
  flags.num_ranks =
      add("-n,--ranks", "N", "Ranks on this node")->default_str("1");
  flags.num_nodes = add("--nnodes", "N", "Nodes of the job")->default_str("1");
  flags.node_rank =
      add("--node-rank", "N", "This node, from 0")->default_str("0");
  flags.master_addr = add(
      "--master-addr", "ADDRESS", "Address of node 0 (one node: 127.0.0.1)");
  flags.master_port =
      add("--master-port",
          "PORT",
          "Port of node 0 (one node: 0 or none takes a free one)");
  flags.log_dir =
      add("--log-dir",
          "FOLDER",
          "Folder for rank-<r>.log, the whole output of each rank");
  return flags;
}

RunOptions read(const Flags& flags) {
  RunOptions options;
  read_number(
      *flags.num_ranks,
      "a whole number from 1 to " + std::to_string(kMostRanksOnNode),
      options.num_ranks);
  read_number(
      *flags.num_nodes,
      "a whole number from 1 to " + std::to_string(kMostNodes),
      options.num_nodes);
  read_number(
      *flags.node_rank,
      "a whole number of at least 0, below --nnodes",
      options.node_rank);
  options.master_addr = value_of(*flags.master_addr);
  read_number(
      *flags.master_port,
      "a port up to 65535, or 0 for a free one",
      options.master_port);
  options.log_dir = value_of(*flags.log_dir).value_or("");
  if (flags.log_dir->count() > 0 && options.log_dir.empty()) {
    throw ConfigError("--log-dir is \"\": expected the name of a folder");
  }
  return options;
}

} // namespace

void register_run(
    CLI::App& app, std::vector<std::string> program, int& exit_status) {
  CLI::App* run = app.add_subcommand(
      "run",
      "Start the ranks of a job: fsdp run [options] -- program [arguments]");
  run->footer(kFooter);
  const Flags flags = add_flags(*run);
  run->callback([flags, program = std::move(program), &exit_status] {
    RunOptions options = read(flags);
    options.program = program;
    exit_status = run_job(options);
  });
}

} // namespace fsdp::cli
