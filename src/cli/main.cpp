// The program `fsdp`: reads the command line, runs one command, and turns
// exceptions into one line and an exit status.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/plan_command.h"
#include "cli/run_command.h"
#include "cli/simulate_command.h"
#include "cli/suggestion.h"
#include "cli/trace_command.h"
#ifdef FSDP_CLI_HAS_TRAIN
#include "cli/dryrun_command.h"
#include "cli/train_command.h"
#endif
#include "fsdp/error.h"
#include "launch/run_job.h"

namespace {

constexpr int kFailure = 1;
constexpr int kWrongUse = 2; // of the command line or of a setting

int complain(const std::string& who, const std::string& text, int status) {
  std::cerr << who << ": " << text << std::endl;
  return status;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

/// What to say of an argument that CLI11 could not place.
std::string describe_unknown(
    const CLI::App& command, const std::string& who, std::string argument) {
  if (!argument.starts_with('-')) {
    return "unexpected \"" + argument + "\"" +
           (command.get_name() == "run"
                ? ": expected fsdp run [options] -- program [arguments]"
                : ": expected options only");
  }
  argument = argument.substr(0, argument.find('='));
  return "unknown option " + argument + ": " +
         fsdp::cli::suggest(argument, option_names(command)) + " (see " + who +
         " --help)";
}

int wrong_command_line(CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::string who =
      chosen.empty() ? "fsdp" : "fsdp " + command.get_name();
  const auto unknown = app.remaining(true);
  if (!unknown.empty()) {
    return complain(
        who, describe_unknown(command, who, unknown.front()), kWrongUse);
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return complain(who, text, kWrongUse);
}

/// "--flag=" as "--flag" and an empty value: CLI11 takes the next argument for
/// the value, and a switch for one that is on.
std::vector<std::string> with_empty_values(
    const std::vector<std::string>& args) {
  std::vector<std::string> all;
  for (const std::string& arg : args) {
    if (arg.starts_with("--") && arg.find('=') == arg.size() - 1) {
      all.push_back(arg.substr(0, arg.size() - 1));
      all.emplace_back();
    } else {
      all.push_back(arg);
    }
  }
  return all;
}

/// Runs the command that the arguments name.
int run_command(CLI::App& app, std::vector<std::string> args) {
  try {
    args = with_empty_values(args);
    std::reverse(args.begin(), args.end()); // as CLI11 takes them
    app.parse(args);
    return 0;
  } catch (const CLI::Success& done) { // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    return wrong_command_line(app, error);
  }
}

/// A mistake in the command's name, before CLI11 words it its own way; 0 if
/// there is none.
int check_name(
    const CLI::App& app,
    const std::vector<std::string>& args,
    bool has_program) {
  const auto names = command_names(app);
  const std::string see = " (see fsdp --help)";
  if (args.empty()) {
    return complain(
        "fsdp",
        "no command: expected " + fsdp::cli::list(names) + see,
        kWrongUse);
  }
  const std::string& name = args.front();
  const bool known = std::find(names.begin(), names.end(), name) != names.end();
  if (!known && !name.starts_with('-')) {
    return complain(
        "fsdp",
        "unknown command " + name + ": " + fsdp::cli::suggest(name, names) +
            see,
        kWrongUse);
  }
  if (has_program && name != "run") {
    return complain(
        "fsdp " + name, "unexpected \"--\": expected options only", kWrongUse);
  }
  return 0;
}

/// Runs `command` and says in one line what it threw.
template <typename Command>
int run_guarded(const std::string& who, Command command) {
  try {
    return command();
  } catch (const fsdp::ProgramError& error) {
    return complain(who, error.what(), error.status);
  } catch (const fsdp::ConfigError& error) {
    return complain(who, error.what(), kWrongUse);
  } catch (const fsdp::UsageError& error) {
    return complain(who, error.what(), kWrongUse);
  } catch (const fsdp::PeerError& error) {
    return complain(who, error.what(), fsdp::kExitAfterPeerFailure);
  } catch (const fsdp::PeerDiedError& error) {
    return complain(who, error.what(), fsdp::kExitAfterPeerFailure);
  } catch (const std::exception& error) {
    return complain(who, error.what(), kFailure);
  }
}

} // namespace

int main(int argc, char** argv) {
  // What follows "--" is not for CLI11, which would read some of it.
  std::vector<std::string> args(argv + 1, argv + argc);
  const auto dashes = std::find(args.begin(), args.end(), "--");
  std::vector<std::string> program;
  if (dashes != args.end()) {
    program.assign(dashes + 1, args.end());
  }
  args.erase(dashes, args.end());

  CLI::App app("Fully sharded data parallel training for LibTorch", "fsdp");
  app.set_version_flag("--version", "fsdp " FSDP_VERSION);
  app.require_subcommand(1);
  int status = 0;
  fsdp::cli::register_run(app, program, status);
  fsdp::cli::register_plan(app);
  fsdp::cli::register_simulate(app);
  fsdp::cli::register_trace(app);
#ifdef FSDP_CLI_HAS_TRAIN
  fsdp::cli::register_train(app);
  fsdp::cli::register_dryrun(app);
#endif

  if (const int wrong = check_name(app, args, !program.empty())) {
    return wrong;
  }
  return run_guarded("fsdp " + args.front(), [&] {
    const int parsed = run_command(app, args);
    if (!std::cout.flush()) {
      throw std::runtime_error("what it prints cannot be written");
    }
    return parsed != 0 ? parsed : status;
  });
}
