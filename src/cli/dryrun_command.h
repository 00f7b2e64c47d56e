#pragma once
// `fsdp dryrun`: one rank's step, counted and not run.

namespace CLI {
class App;
}

namespace fsdp::cli {

void register_dryrun(CLI::App& app);

} // namespace fsdp::cli
