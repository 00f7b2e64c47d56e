#include "cli/train_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "cli/setting_flags.h"
#include "fsdp/process_group.h"
#include "train/config.h"
#include "train/console.h"
#include "train/json_log.h"
#include "train/run_on_ranks.h"
#include "train/trainer.h"

namespace fsdp::cli {

namespace {

constexpr const char* kFooter =
    R"(The launcher says how many ranks there are. Keys of a configuration file are the
names above without dashes; flags win over it:

  fsdp run -n 2 -- fsdp train --preset bytes --minutes 3
  fsdp run -n 4 -- fsdp train --config run.toml --steps 300
)";

/// Live lines go to a terminal, or through a launcher that draws them on one.
Console::Style choose_style() {
  const char* relayed = std::getenv("FSDP_LIVE_LINE");
  const bool live = isatty(STDOUT_FILENO) != 0 ||
                    (relayed != nullptr && std::string(relayed) == "1");
  return live ? Console::Style::kLiveLine : Console::Style::kLines;
}

void run_train(const TrainOptions& options) {
  const ProcessGroup world = init_process_group(
      {.backend = options.backend, .timeout = options.timeout});
  Console console(std::cout, choose_style());
  std::vector<TrainObserver*> observers{&console};
  std::optional<JsonLog> log;
  run_on_ranks(world, [&] {
    if (!options.log_json.empty() && world.rank() == 0) {
      observers.push_back(&log.emplace(options.log_json));
    }
    Trainer(options, world, observers).run();
  });
}

} // namespace

void register_train(CLI::App& app) {
  CLI::App* train = app.add_subcommand(
      "train",
      "Train a model, sharded over the ranks that the launcher started");
  train->footer("\nPresets:\n" + preset_lines() + "\n" + kFooter);
  train->callback([flags = SettingFlags(*train)] {
    const TrainOptions options = make_train_options(flags.read());
    with_one_line_errors([&] { run_train(options); });
  });
}

} // namespace fsdp::cli
