#pragma once
// `fsdp plan`.

namespace CLI {
class App;
}

namespace fsdp::cli {

/// See run_command.h; prints the plan on stdout.
void register_plan(CLI::App& app);

} // namespace fsdp::cli
