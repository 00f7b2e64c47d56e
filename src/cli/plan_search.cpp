#include "cli/plan_search.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/option_value.h"
#include "cli/table.h"
#include "cli/units.h"
#include "fsdp/error.h"
#include "plan/search.h"
#include "report/quantity.h"

namespace fsdp::cli {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t kListed = 12;

/// What a search chooses itself.
constexpr const char* kSearched[] = {
    "--strategy",
    "--shard-size",
    "--batch",
    "--accumulation",
    "--no-sync",
    "--checkpointing",
    "--checkpointed-blocks",
    "--prefetch"};

std::string number_text(std::int64_t number) {
  return std::to_string(number);
}

std::vector<std::string> row_of(const plan::PlannedJob& plan) {
  const plan::Job& job = plan.job;
  return {
      std::string(name_of(job.strategy)),
      number_text(job.shard_size),
      number_text(job.micro_batch),
      number_text(job.accumulation) + (job.sync_every_pass ? "" : " no sync"),
      std::string(name_of(job.checkpointing)),
      number_text(job.prefetch_depth),
      bytes_text(static_cast<double>(plan.memory.total())),
      plan.fits ? seconds_text(plan.step.seconds) : "-",
      plan.fits ? report::percent_text(plan.throughput.mfu) : "-",
      plan.why.empty() ? "the fastest" : plan.why};
}

std::string text_of(
    const plan::SearchRequest& request, const plan::SearchResult& result) {
  const std::vector<std::string> head{
      "strategy",
      "shards",
      "batch",
      "passes",
      "checkpointing",
      "prefetch",
      "memory",
      "step",
      "MFU",
      "why"};
  Table table(head, head.size());
  const std::size_t count = std::min(kListed, result.plans.size());
  for (std::size_t i = 0; i < count; ++i) {
    table.add(row_of(result.plans[i]));
  }
  const std::string where = number_text(request.cluster.world_size()) + " x " +
                            request.cluster.device.name + " with " +
                            bytes_text(request.cluster.device.memory_bytes) +
                            " each";
  std::string text = request.model.name + " on " + where + ", " +
                     number_text(request.global_batch) + " sequences a step, " +
                     number_text(result.considered) + " plans\n";
  if (result.best() == nullptr) {
    text += "none fits; the nearest are\n";
  }
  text += table.text();
  if (count < result.plans.size()) {
    text +=
        "  and " +
        number_text(static_cast<std::int64_t>(result.plans.size() - count)) +
        " more (--json has them)\n";
  }
  return text;
}

ordered_json json_of(const plan::PlannedJob& plan) {
  const plan::Job& job = plan.job;
  ordered_json value{
      {"strategy", name_of(job.strategy)},
      {"shard_size", job.shard_size},
      {"micro_batch", job.micro_batch},
      {"accumulation", job.accumulation},
      {"sync_every_pass", job.sync_every_pass},
      {"checkpointing", name_of(job.checkpointing)},
      {"prefetch_depth", job.prefetch_depth},
      {"memory_bytes", plan.memory.total()},
      {"fits", plan.fits},
      {"why", plan.why}};
  if (plan.fits) {
    value["step_s"] = plan.step.seconds;
    value["exposed_s"] = plan.step.exposed;
    value["tokens_per_second"] = plan.throughput.tokens_per_second;
    value["mfu"] = plan.throughput.mfu;
  }
  return value;
}

std::string json_text(
    const plan::SearchRequest& request, const plan::SearchResult& result) {
  ordered_json plans = ordered_json::array();
  for (const plan::PlannedJob& plan : result.plans) {
    plans.push_back(json_of(plan));
  }
  const ordered_json root{
      {"model", request.model.name},
      {"device", request.cluster.device.name},
      {"ranks", request.cluster.world_size()},
      {"global_batch", request.global_batch},
      {"considered", result.considered},
      {"plans", std::move(plans)}};
  return root.dump(2) + "\n";
}

} // namespace

SearchOptions::SearchOptions(CLI::App& command) : command_(&command) {
  search_ = add_option(
      command, "--search", "", "Find the fastest plan that fits instead");
  global_batch_ = add_option(
      command,
      "--global-batch",
      "N",
      "With --search: sequences of a step, all ranks together");
}

bool SearchOptions::is_on() const {
  const bool is_given = cli::is_on(*search_);
  if (!is_given && global_batch_->count() > 0) {
    throw ConfigError(
        "--global-batch without --search: expected --batch and --accumulation");
  }
  return is_given;
}

std::int64_t SearchOptions::global_batch() const {
  const auto text = value_of(*global_batch_);
  if (!text) {
    throw ConfigError(
        "--search without --global-batch: expected the sequences of a step");
  }
  const auto count = parse_count(*text);
  if (!count) {
    throw ConfigError(
        "--global-batch is \"" + *text + "\": expected a whole number");
  }
  return *count;
}

std::string SearchOptions::run(const PlanRequest& request, bool as_json) const {
  for (const char* flag : kSearched) {
    if (command_->get_option(flag)->count() > 0) {
      throw ConfigError(
          std::string(flag) +
          " with --search, which chooses it: leave one of the two out");
    }
  }
  const plan::SearchRequest asked{
      request.model, request.cluster, request.job, global_batch()};
  const plan::SearchResult result = plan::search(asked);
  return as_json ? json_text(asked, result) : text_of(asked, result);
}

} // namespace fsdp::cli
