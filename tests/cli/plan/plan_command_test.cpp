// `fsdp plan` as a process: what it prints, and each mistake in one line.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace fsdp::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

class PlanCommand : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  static ProcessResult run(Arguments options) {
    options.insert(options.begin(), {FSDP_PROGRAM, "plan"});
    return run_process(options, {}, std::chrono::seconds(60));
  }

  static std::string printed(const Arguments& options) {
    const ProcessResult result = run(options);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(result.exit_code, 0);
    return result.out;
  }

  static json document(Arguments options) {
    options.emplace_back("--json");
    return json::parse(printed(options));
  }

  static void expect_refused(
      const Arguments& options,
      const ::testing::Matcher<std::string>& line,
      int status = 2) {
    const ProcessResult result = run(options);
    EXPECT_THAT(result.err, line);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
        << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.exit_code, status) << result.err;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

/// With seed's figures behind it, one rank.
Arguments with_seed(const Arguments& more) {
  Arguments all{"--model", "seed"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_F(PlanCommand, PrintsMemoryTrafficAndEveryStrategy) {
  const std::string text = printed(
      {"--model", "llama2-7b", "--device", "A100-SXM-80GB", "--nodes", "2"});
  for (const char* part :
       {"model    llama2-7b: 6738415616 parameters (6.74 B) in 291 tensors, "
        "32 blocks\n",
        "devices  2 node(s) x 8 A100-SXM-80GB, 84.9 GB each\n",
        "\nmemory of rank 0\n",
        "\n  parameters ",
        "  fits, ",
        "\ntraffic of rank 0, a step\n",
        "\n  all_gather ",
        "\n  reduce_scatter ",
        "\nall strategies\n",
        "\n  no_shard ",
        "\n  shard_grad_op ",
        "\n  full_shard ",
        "\n  hybrid_shard ",
        "\n  hybrid_shard_zero2 "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(
      printed({"--model", "llama2-70b", "--gpus-per-node", "2"}),
      HasSubstr("  does not fit: "));
}

TEST_F(PlanCommand, CountsTheSeedModelToTheByte) {
  const json plan =
      document(with_seed({"--gpus-per-node", "2", "--precision", "fp32"}));
  EXPECT_EQ(plan["model"]["parameters"], 9'868'560);
  EXPECT_EQ(plan["cluster"]["ranks"], 2);
  const json& memory = plan["plan"]["memory"];
  // Every tensor but none has an even number of rows: half of it is rank 0's.
  EXPECT_EQ(memory["parameters"], 9'868'560 / 2 * 4);
  EXPECT_EQ(memory["gradients"], 9'868'560 / 2 * 4);
  EXPECT_EQ(memory["optimizer"], 9'868'560 / 2 * 8 + 75 * 4);
  const json& lines = plan["plan"]["traffic"]["lines"];
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["collective"], "all_gather");
  EXPECT_EQ(lines[0]["calls"], 13);
  EXPECT_EQ(lines[1]["collective"], "reduce_scatter");
  EXPECT_EQ(lines[1]["sent_bytes"], 9'868'560 / 2 * 4);
  EXPECT_EQ(lines[2]["sent_bytes"], 75);
  EXPECT_EQ(plan["alternatives"].size(), 3U); // one node has no replicas
}

TEST_F(PlanCommand, EverySettingChangesThePlan) {
  const Arguments base{"--model", "gpt2", "--nodes", "2"};
  const json before = document(base);
  for (const Arguments& setting : std::vector<Arguments>{
           {"--device", "L4"},
           {"--peak-tflops", "100"}, // in the device's name
           {"--memory-gib", "16"},
           {"--memory-bandwidth-gbytes", "100"},
           {"--node-bandwidth-gbytes", "100"},
           {"--network-bandwidth-gbytes", "100"},
           {"--gpus-per-node", "4"},
           {"--strategy", "shard_grad_op"},
           {"--strategy", "hybrid_shard", "--shard-size", "4"},
           {"--precision", "fp32"},
           {"--precision", "bf16-reduce"},
           {"--precision", "pure-bf16"},
           {"--precision", "fp16"},
           {"--precision", "fp8"},
           {"--optimizer", "sgd"},
           {"--offload"},
           {"--batch", "2"},
           {"--seq", "512"},
           {"--accumulation", "2"},
           {"--accumulation", "2", "--no-sync"},
           {"--checkpointing", "full"},
           {"--attention", "plain"},
           {"--compile"},
           {"--prefetch", "2"},
           {"--runtime", "fsdp2"}}) {
    Arguments all = base;
    all.insert(all.end(), setting.begin(), setting.end());
    EXPECT_NE(document(all), before) << setting.front();
  }
}

TEST_F(PlanCommand, PlansFilesAndSizes) {
  const std::string config = write(
      "config.json",
      R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
          "n_positions": 1024, "vocab_size": 50257})");
  EXPECT_EQ(document({"--model", config})["model"]["parameters"], 124'439'808);
  std::string header =
      R"({"h.0.w":{"dtype":"F32","shape":[5,3],"data_offsets":[0,60]},)"
      R"("head":{"dtype":"F32","shape":[1],"data_offsets":[60,64]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  const std::string weights =
      write("m.safetensors", length + header + std::string(64, '\0'));
  const json plan = document({"--model", weights, "--gpus-per-node", "2"});
  EXPECT_EQ(plan["model"]["parameters"], 16);
  EXPECT_EQ(plan["model"]["blocks"], 1);
  EXPECT_EQ(plan["plan"]["memory"]["activations"], 0);
  EXPECT_THAT(
      printed({"--model", weights}),
      HasSubstr("without activations and logits"));
  for (const Arguments& flag : std::vector<Arguments>{
           {"--batch", "1"},
           {"--seq", "1"},
           {"--checkpointing", "none"},
           {"--attention", "fused"},
           {"--compile"}}) {
    Arguments all{"--model", weights};
    all.insert(all.end(), flag.begin(), flag.end());
    expect_refused(
        all,
        "fsdp plan: " + flag.front() +
            " with a file of weights, which does not tell what a pass keeps: "
            "give the model's config.json\n");
  }
  const double params = document({"--params", "70B"})["model"]["parameters"];
  EXPECT_NEAR(params, 70e9, 0.7e9);
}

TEST_F(PlanCommand, TakesOwnFiguresOfADevice) {
  const json own = document(with_seed({"--memory-gib", "24"}));
  EXPECT_EQ(own["cluster"]["device"], "own figures");
  EXPECT_EQ(own["cluster"]["device_memory"], 24 * (std::int64_t{1} << 30));
  EXPECT_TRUE(own["plan"]["memory"]["fits"]);
  const json none = document(with_seed({"--peak-tflops", "100"}));
  EXPECT_TRUE(none["plan"]["memory"]["fits"].is_null());
  EXPECT_THAT(
      printed(with_seed({"--peak-tflops", "100"})),
      HasSubstr("whether it fits is not known: give --device or --memory-gib"));
  EXPECT_EQ(
      document(with_seed(
          {"--device", "l4", "--memory-gib", "1"}))["cluster"]["device"],
      "L4 with own figures");
}

TEST_F(PlanCommand, PlansSharedMemory) {
  const json plan = document(with_seed({"--backend", "shm"}));
  EXPECT_EQ(plan["plan"]["traffic"]["sent_bytes"], 0);
  EXPECT_EQ(plan["plan"]["memory"]["gathered"], 0);
  EXPECT_GE(plan["plan"]["memory"]["shared_per_node"], 9'868'560 * 2);
  EXPECT_THAT(
      printed(with_seed({"--backend", "shm"})),
      HasSubstr("in the host's memory, for all its ranks: "));
}

TEST_F(PlanCommand, RefusesNonsenseInOneLine) {
  expect_refused(
      with_seed({"--gpus-per-node", "0"}),
      "fsdp plan: the number of devices of a node is 0: expected 1 to "
      "100000000\n");
  expect_refused(
      with_seed({"--nodes", "-2"}),
      "fsdp plan: --nodes '-2': expected a whole number from 0 to "
      "9223372036854775807\n");
  expect_refused(
      with_seed({"--nodes", "99999999999999999999"}),
      StartsWith("fsdp plan: --nodes '99999999999999999999': expected "));
  expect_refused(
      with_seed({"--nodes", "100000000", "--gpus-per-node", "8"}),
      "fsdp plan: 100000000 nodes of 8 devices: expected at most 100000000 "
      "devices\n");
  expect_refused(
      with_seed(
          {"--nodes", "2", "--strategy", "hybrid_shard", "--shard-size", "6"}),
      "fsdp plan: a shard size of 6 does not divide the world of 16 ranks: "
      "choose a divisor of it\n");
  expect_refused(
      with_seed({"--batch", "1000000000000", "--seq", "1000000"}),
      "fsdp plan: a micro-batch of 1000000000000 sequences of 1000000 tokens: "
      "expected at most 1000000000000000 tokens\n");
  expect_refused(
      with_seed({"--seq", "100000000000000"}),
      StartsWith("fsdp plan: the plan counts more than 9223372036854775807"));
  expect_refused(
      {"--model", "gpt2", "--seq", "2048"},
      "fsdp plan: --seq 2048: model 'gpt2' has 1024 positions; choose a "
      "shorter sequence\n");
  for (const char* figure : {"0", "-1", "nan", "much", "1e10"}) {
    expect_refused(
        with_seed({"--memory-gib", figure}),
        "fsdp plan: --memory-gib '" + std::string(figure) +
            "': expected a number above 0, at most 1e9\n");
  }
}

TEST_F(PlanCommand, NamesTheNearestOfUnknownNames) {
  expect_refused(
      {"--model", "llama2-7"},
      StartsWith(
          "fsdp plan: model 'llama2-7' is unknown: the nearest is 'llama2-7b', "
          "'llama2-70b'; known are seed, "));
  expect_refused(
      with_seed({"--device", "H100-SXM-80"}),
      StartsWith("fsdp plan: device 'H100-SXM-80' is unknown: the nearest is "
                 "'H100-SXM-80GB'; known are "));
  expect_refused(
      with_seed({"--strategy", "fullshard2"}),
      "fsdp plan: --strategy 'fullshard2' is unknown: the nearest is "
      "'full_shard'; known are no_shard, shard_grad_op, full_shard, "
      "hybrid_shard, hybrid_shard_zero2\n");
  expect_refused(
      with_seed({"--modle", "seed"}),
      "fsdp plan: unknown option --modle: did you mean --model? (see fsdp "
      "plan --help)\n");
}

TEST_F(PlanCommand, RefusesWhatWouldHaveNoEffect) {
  expect_refused(
      {"--device", "L4"},
      "fsdp plan: no model: expected --model NAME, --model FILE or --params "
      "N\n");
  expect_refused(
      with_seed({"--params", "7B"}),
      "fsdp plan: --model and --params are both given: expected one\n");
  expect_refused(
      with_seed({"--no-sync"}),
      "fsdp plan: --no-sync without --accumulation: expected 2 passes or "
      "more\n");
  expect_refused(
      with_seed({"--strategy", "no_shard", "--prefetch", "2"}),
      "fsdp plan: --prefetch with --strategy no_shard: nothing is gathered "
      "there\n");
  expect_refused(
      with_seed({"--backend", "shm", "--offload"}),
      "fsdp plan: --offload with --backend shm: its shards are in the host's "
      "memory\n");
  expect_refused(
      with_seed({"--shard-size", "0"}),
      "fsdp plan: --shard-size '0': expected 1 or more\n");
  expect_refused(
      with_seed({"--offload=maybe"}),
      "fsdp plan: --offload 'maybe': expected true or false\n");
  expect_refused(
      with_seed({"--batch", "1", "--batch", "2"}),
      "fsdp plan: --batch is given 2 times ('1', '2'): expected it once at "
      "most\n");
  expect_refused(
      with_seed({"--seed-tables"}),
      "fsdp plan: --seed-tables are of fixed models: expected no flag but "
      "--json, --html and --loss\n");
}

TEST_F(PlanCommand, RefusesAPageThatCannotBe) {
  const std::string page = (folder_ / "page.html").string();
  expect_refused(
      with_seed({"--loss", "log.jsonl"}),
      "fsdp plan: --loss without --html: expected a page to show it on\n");
  expect_refused(
      with_seed({"--search", "--global-batch", "8", "--html", page}),
      "fsdp plan: --search with --html: expected one of them; give the plan "
      "that the search finds to --html\n");
  expect_refused(
      with_seed({"--html", "/gone/page.html"}),
      "fsdp plan: --html '/gone/page.html': cannot be written\n",
      1);
  expect_refused(
      {"--html", page, "--loss", "/gone/log.jsonl"},
      "fsdp plan: loss '/gone/log.jsonl': cannot be read\n",
      1);
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST_F(PlanCommand, SaysWhereThePageIs) {
  const std::string page = (folder_ / "page.html").string();
  const std::string text = printed(with_seed({"--html", page}));
  EXPECT_THAT(text, HasSubstr("charts in " + page + "\n"));
  EXPECT_GT(std::filesystem::file_size(page), 100000U);
  EXPECT_EQ(document(with_seed({"--html", page})), document(with_seed({})));
}

TEST_F(PlanCommand, RefusesCountsThatAreNotWhole) {
  expect_refused(
      {"--model", "gpt2", "--batch", "1.5"},
      StartsWith("fsdp plan: --batch '1.5': expected a whole number"));
}

TEST_F(PlanCommand, DoesNotWaitForAPipe) {
  const std::string pipe = (folder_ / "config.json").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(
      {"--model", pipe},
      StartsWith("fsdp plan: config '" + pipe + "' cannot be read"),
      1);
}

TEST_F(PlanCommand, RefusesFilesThatAreNoModel) {
  const std::string missing =
      write("config.json", R"({"model_type": "llama", "hidden_size": 64})");
  expect_refused(
      {"--model", missing},
      "fsdp plan: config '" + missing +
          "': 'num_hidden_layers' of model type 'llama' is missing: expected "
          "a whole number\n");
  expect_refused(
      {"--model", "/gone/config.json"},
      "fsdp plan: config '/gone/config.json' cannot be read: expected a "
      "file\n",
      1);
  const std::string weights = write("m.safetensors", "short");
  expect_refused(
      {"--model", weights},
      StartsWith("fsdp plan: safetensors file '" + weights + "': "),
      1);
}

TEST_F(PlanCommand, PrintsTheDocumentsTables) {
  const std::string text = printed({"--seed-tables"});
  for (const char* row :
       {"  parameters 9,868,560, all trainable, in 75 tensors\n",
        "  memory (FP32) 39.5 MB\n",
        "  memory (with Adam) 157.9 MB\n",
        "  shard_grad_op    16         39.5         2.5         4.9        "
        "46.9\n",
        "  full_shard        4          9.9         9.9        19.7        "
        "39.5\n",
        "  full_shard          0.2368                    0.1036\n",
        "  7B        8       80    112 no      38.5 fits   14.0 fits\n",
        "  70B      32       80   1120 no       306.2 no   35.0 fits\n",
        "  175B     64       80   2800 no       732.8 no   43.8 fits\n",
        "  70B on 8: FULL_SHARD + CPU offload (model may still not fit)\n",
        "in a ring of N a rank sends (N-1)/N of a copy",
        "  a block of 220M is 0.44 GB in bf16\n"}) {
    EXPECT_THAT(text, HasSubstr(row));
  }
  const json tables = json::parse(printed({"--seed-tables", "--json"}));
  EXPECT_EQ(tables["memory"].size(), 12U);
  EXPECT_EQ(tables["advice"].size(), 5U);
  EXPECT_EQ(tables["model"]["parameters"], 9'868'560);
}

TEST_F(PlanCommand, HelpShowsModelsDevicesAndFlags) {
  const std::string help = printed({"--help"});
  for (const char* word :
       {"llama3-405b", "H200-SXM-141GB", "--shard-size N", "--seed-tables"}) {
    EXPECT_THAT(help, HasSubstr(word));
  }
}

} // namespace
} // namespace fsdp::testing
