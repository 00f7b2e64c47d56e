#pragma once
// `fsdp trace`: how much communication of a recorded timeline is exposed.

namespace CLI {
class App;
}

namespace fsdp::cli {

void register_trace(CLI::App& app);

} // namespace fsdp::cli
