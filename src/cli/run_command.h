#pragma once
// `fsdp run`. Every command has such a file: its function adds a subcommand
// whose callback runs the command and may throw; main turns the exception into
// one line on stderr and an exit status.

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fsdp::cli {

/// `program` is what follows "--". The exit status of the job goes to
/// `exit_status`, which lives as long as `app`.
void register_run(
    CLI::App& app, std::vector<std::string> program, int& exit_status);

} // namespace fsdp::cli
