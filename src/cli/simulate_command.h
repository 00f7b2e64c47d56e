#pragma once
// `fsdp simulate`: one step of a job on two streams, before there is one.

namespace CLI {
class App;
}

namespace fsdp::cli {

void register_simulate(CLI::App& app);

} // namespace fsdp::cli
