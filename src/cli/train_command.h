#pragma once
// `fsdp train`: one rank of a training run.

namespace CLI {
class App;
}

namespace fsdp::cli {

void register_train(CLI::App& app);

} // namespace fsdp::cli
