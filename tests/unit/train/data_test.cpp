#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fsdp/error.h"
#include "support/temporary_folder.h"
#include "train/data/corpus.h"
#include "train/data/windows.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

class Data : public ::testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  static std::string tokens(const std::vector<std::uint16_t>& values) {
    return {
        reinterpret_cast<const char*>(values.data()),
        values.size() * sizeof(std::uint16_t)};
  }

  static std::string llm_c(
      std::int32_t version,
      std::int32_t count,
      const std::vector<std::uint16_t>& values,
      std::int32_t magic = 20240520) {
    std::vector<std::int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
           tokens(values);
  }

  static std::string text_of(const TokenSource& source) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(source.size()));
    source.copy(0, values);
    return {values.begin(), values.end()};
  }

  static std::vector<std::int64_t> values_of(const TokenSource& source) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(source.size()));
    source.copy(0, values);
    return values;
  }

  std::string error_of(const fs::path& path, std::int64_t vocab_size = 256) {
    try {
      open_corpus(path, vocab_size, 3);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }

  const testing::TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(Data, FolderOfTextSendsEveryTwentiethFileToValidation) {
  std::string train;
  std::string validation;
  for (char c = 'a'; c < 'a' + 20; ++c) {
    // Written in reverse: the order is that of the paths.
    const char name = static_cast<char>('a' + 't' - c);
    write(std::string(1, name) + "/x.txt", std::string(4, name));
    (c == 't' ? validation : train) += std::string(4, c);
  }
  write("t/y.txt", "after");
  write(".hidden/z.txt", "hidden");
  write("c/binary", std::string("PK\0\0", 4));
  const Corpus corpus = open_corpus(folder_, 256, 3);
  EXPECT_EQ(text_of(*corpus.train), train + "after");
  EXPECT_EQ(text_of(*corpus.validation), validation);
  EXPECT_EQ(
      corpus.description,
      "21 text files of " + folder_.string() +
          ", 0.0 MB, every 20th for validation, 1 binary files left out");
}

TEST_F(Data, FewFilesOrOneAreSplitAtTheirLastTwentieth) {
  const fs::path file =
      write("a.txt", std::string(95, 'x') + std::string(5, 'y'));
  for (const fs::path& path : {file, folder_}) {
    const Corpus corpus = open_corpus(path, 256, 3);
    EXPECT_EQ(text_of(*corpus.train), std::string(95, 'x'));
    EXPECT_EQ(text_of(*corpus.validation), std::string(5, 'y'));
  }
}

TEST_F(Data, ExtensionKeepsOneKindOfFile) {
  write("a.py", std::string(100, 'p'));
  write("b.so", std::string(100, 's'));
  const Corpus corpus = open_corpus(folder_, 256, 3, ".py");
  EXPECT_EQ(text_of(*corpus.train), std::string(95, 'p'));
}

TEST_F(Data, RawAndHeadedTokenFilesGiveTheirTokens) {
  std::vector<std::uint16_t> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint16_t>(i * 500);
  }
  for (const std::string& content : {tokens(values), llm_c(1, 100, values)}) {
    const fs::path path = write("one.bin", content);
    const Corpus corpus = open_corpus(path, 50'000, 3);
    ASSERT_EQ(corpus.train->size(), 95);
    ASSERT_EQ(corpus.validation->size(), 5);
    EXPECT_THAT(
        values_of(*corpus.validation),
        ::testing::ElementsAre(47'500, 48'000, 48'500, 49'000, 49'500));
    EXPECT_EQ(corpus.train_text, nullptr);
  }
}

TEST_F(Data, FolderOfTokenFilesSplitsByNameAndReadsAcrossFiles) {
  write("train_0.bin", tokens({0, 1, 2}));
  write("train_1.bin", llm_c(1, 4, {3, 4, 5, 6}));
  write("val_0.bin", tokens({9, 8, 7}));
  const Corpus corpus = open_corpus(folder_, 10, 3);
  EXPECT_THAT(
      values_of(*corpus.train), ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values_of(*corpus.validation), ::testing::ElementsAre(9, 8, 7));
  std::vector<std::int64_t> across(3);
  corpus.train->copy(2, across);
  EXPECT_THAT(across, ::testing::ElementsAre(2, 3, 4));
}

TEST_F(Data, ErrorsNameThePathAndWhatIsWrong) {
  const std::string gone = (folder_ / "gone").string();
  EXPECT_EQ(
      error_of(gone),
      "--data '" + gone + "': cannot be read: No such file or directory");
  const fs::path file = write("file", "text");
  const std::string below = (file / "x").string();
  EXPECT_EQ(
      error_of(below),
      "--data '" + below + "': cannot be read: Not a directory");
  fs::remove(file);
  const std::string loop = (folder_ / "loop").string();
  fs::create_symlink(loop, loop);
  EXPECT_EQ(
      error_of(loop),
      "--data '" + loop +
          "': cannot be read: Too many levels of symbolic links");
  fs::remove(loop);
  EXPECT_EQ(
      error_of(folder_),
      "--data '" + folder_.string() + "': the folder holds no file");
  const std::string text =
      write("short.txt", "only forty bytes of text, last 5 % are 2").string();
  EXPECT_EQ(
      error_of(text),
      "--data '" + text +
          "': too short: the validation part holds 2 tokens, at least 3 are "
          "needed (--seq and one more)");
  EXPECT_EQ(
      error_of(text, 100),
      "--data '" + text +
          "': text needs a vocabulary of 256 bytes, the model's holds 100");
}

TEST_F(Data, TokenFileErrorsNameThePathAndWhatIsWrong) {
  const std::string path = (folder_ / "x.bin").string();
  const std::string start = "token file '" + path + "': ";
  write("x.bin", tokens({1, 2, 300}));
  EXPECT_EQ(
      error_of(path),
      start +
          "token 2 is 300, but the model's vocabulary holds 256: use a preset "
          "with a larger one");
  write("x.bin", "odd");
  EXPECT_EQ(
      error_of(path), start + "3 bytes are no whole number of 16-bit tokens");
  write("x.bin", "");
  EXPECT_EQ(
      error_of(path),
      "--data '" + path +
          "': too short: the training part holds 0 tokens, at least 3 are "
          "needed (--seq and one more)");
  write("x.bin", llm_c(1, 3, {1, 2, 3}).substr(0, 12));
  EXPECT_EQ(
      error_of(path, 65'536),
      start + "cut short: 12 bytes, llm.c's header alone has 1024");
  write("x.bin", llm_c(1, 3, {1, 2, 3}) + "x");
  EXPECT_EQ(
      error_of(path),
      start + "1031 bytes are no whole number of 16-bit tokens");
  write("x.bin", llm_c(7, 2, {1, 0, 2, 0}, 20240801));
  EXPECT_EQ(
      error_of(path, 65'536),
      start +
          "32-bit tokens of llm.c's format (magic 20240801), expected 16-bit "
          "ones (20240520)");
  write("x.bin", llm_c(1, 3, {1, 2, 3}, 1));
  EXPECT_EQ(error_of(path, 65'536), "no error") << "no header at all";
  write("x.bin", llm_c(2, 3, {1, 2, 3}));
  EXPECT_EQ(error_of(path), start + "version 2 of llm.c's format, expected 1");
  write("x.bin", llm_c(1, 4, {1, 2, 3}));
  EXPECT_EQ(
      error_of(path), start + "its header promises 4 tokens, the file holds 3");
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(error_of(path), "--data '" + path + "': the folder holds no file");
}

TEST_F(Data, TokensBeyondTheFirstMillionAreCheckedWhenRead) {
  std::vector<std::uint16_t> values(1'100'000, 7);
  values[1'000'500] = 300;
  const auto source = open_token_file(write("long.bin", tokens(values)), 256);
  std::vector<std::int64_t> window(1000);
  source->copy(999'000, window);
  EXPECT_EQ(window.back(), 7);
  EXPECT_THROW(source->copy(1'000'000, window), DataError);
}

TEST_F(Data, TokenFilesThatShrinkAreErrorsAtTheNextRead) {
  const fs::path path =
      write("shrinks.bin", tokens(std::vector<std::uint16_t>(100'000, 7)));
  const auto source = open_token_file(path, 256);
  std::vector<std::int64_t> window(1000);
  fs::resize_file(path, 250'000);
  source->copy(99'000, window);
  fs::resize_file(path, 4000);
  try {
    source->copy(99'000, window);
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_EQ(
        error.what(),
        "token file '" + path.string() +
            "': shrank from 200000 to 4000 bytes while it was in use: leave it "
            "as it is until the run is over");
  }
}

TEST_F(Data, TokenFilesThatAreReplacedOrRemovedAreReadAsTheyWere) {
  const fs::path path =
      write("replaced.bin", tokens(std::vector<std::uint16_t>(100'000, 7)));
  const auto source = open_token_file(path, 256);
  std::vector<std::int64_t> window(1000);
  fs::rename(write("other.bin", tokens({1, 2, 3})), path);
  source->copy(99'000, window);
  EXPECT_EQ(window.back(), 7);
  fs::remove(path);
  source->copy(50'000, window);
  EXPECT_EQ(window.back(), 7);
}

TEST_F(Data, PipesAndDevicesAreNoData) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const fs::path tokens_pipe = folder_ / "pipe.bin";
  ASSERT_EQ(::mkfifo(tokens_pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, tokens_pipe, fs::path("/dev/zero")}) {
    EXPECT_EQ(
        error_of(path),
        "--data '" + path.string() + "': is no regular file and no folder");
  }
}

TEST_F(Data, FoldersLeaveLinksAndPipesOut) {
  write("a.txt", std::string(100, 'x'));
  fs::create_symlink("loop", folder_ / "loop");
  fs::create_symlink("gone", folder_ / "dangling");
  fs::create_directory_symlink(folder_, folder_ / "again");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const Corpus corpus = open_corpus(folder_, 256, 3);
  EXPECT_EQ(text_of(*corpus.train), std::string(95, 'x'));
}

TEST_F(Data, DefaultTextIsBesideTheRunningLibTorch) {
  EXPECT_TRUE(fs::exists(default_text_folder() / "__init__.py"));
}

TEST(Windows, DependOnSeedStepAndIndexAndStayInside) {
  std::set<std::int64_t> seen;
  for (std::int64_t step = 0; step < 50; ++step) {
    for (std::int64_t index = 0; index < 20; ++index) {
      const std::int64_t begin = training_window(1, step, index, 1000, 128);
      EXPECT_GE(begin, 0);
      EXPECT_LE(begin + 128 + 1, 1000);
      EXPECT_EQ(begin, training_window(1, step, index, 1000, 128));
      seen.insert(begin);
    }
  }
  // 1000 draws from 872 places leave about 32 % of them unseen.
  EXPECT_NEAR(static_cast<double>(seen.size()), 872 * 0.68, 40);
  EXPECT_NE(
      training_window(1, 0, 0, 1000, 128), training_window(2, 0, 0, 1000, 128));
}

TEST(Windows, OfValidationAreSpreadEvenlyWithoutOverlap) {
  EXPECT_THAT(
      validation_windows(100, 10, 4), ::testing::ElementsAre(0, 24, 48, 72));
  EXPECT_THAT(validation_windows(22, 10, 4), ::testing::ElementsAre(0, 10));
  EXPECT_THAT(validation_windows(11, 10, 4), ::testing::ElementsAre(0));
}

TEST(Windows, TargetsAreTheNextTokens) {
  const ByteSource source({10, 11, 12, 13, 14, 15});
  const Batch batch = read_windows(source, {0, 2}, 3);
  const auto input = batch.input.accessor<std::int64_t, 2>();
  const auto target = batch.target.accessor<std::int64_t, 2>();
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(input[0][t], 10 + t);
    EXPECT_EQ(target[0][t], 11 + t);
    EXPECT_EQ(input[1][t], 12 + t);
    EXPECT_EQ(target[1][t], 13 + t);
  }
}

TEST(Windows, FixedRandomBatchIsTheSameInParts) {
  const Batch whole = random_batch(5, 0, 4, 16, 10'000);
  for (std::int64_t row = 0; row < 4; ++row) {
    const Batch part = random_batch(5, row, 1, 16, 10'000);
    EXPECT_TRUE(part.input.equal(whole.input.narrow(0, row, 1)));
    EXPECT_TRUE(part.target.equal(whole.target.narrow(0, row, 1)));
  }
  EXPECT_LT(whole.input.max().item<std::int64_t>(), 10'000);
  EXPECT_GT(whole.input.max().item<std::int64_t>(), 8'000);
  EXPECT_FALSE(whole.input.equal(whole.target));
}

} // namespace
} // namespace fsdp
