#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json entry(const std::string& dtype, const json& shape, int begin, int end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

std::string length_of(std::uint64_t bytes) {
  std::string text(sizeof bytes, '\0');
  std::memcpy(text.data(), &bytes, sizeof bytes);
  return text;
}

class Safetensors : public ::testing::Test {
 protected:
  Safetensors()
      : path_(
            std::filesystem::temp_directory_path() /
            ("fsdp-safetensors-" + std::to_string(::getpid()))) {}
  ~Safetensors() override { std::filesystem::remove_all(path_); }

  SafetensorsFile open_bytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    return SafetensorsFile(path_);
  }
  SafetensorsFile open(const std::string& header, const std::string& data) {
    return open_bytes(length_of(header.size()) + header + data);
  }

  /// The text of the DataError behind the file's name; "" if there was none.
  template <typename Call>
  std::string error_of(Call call) {
    try {
      call();
    } catch (const DataError& error) {
      const std::string text = error.what();
      const std::string begin = "safetensors file '" + path_.string() + "': ";
      EXPECT_TRUE(text.starts_with(begin)) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text.substr(std::min(begin.size(), text.size()));
    }
    return "";
  }
  std::string refusal(const json& header, const std::string& data) {
    return error_of([&] { open(header.dump(), data); });
  }

  template <typename T>
  static std::vector<T> values(
      const SafetensorsFile& file, const std::string& name) {
    const SafetensorsEntry& found = file.at(name);
    std::vector<T> result(found.num_bytes / sizeof(T));
    file.read(found, std::as_writable_bytes(std::span(result)));
    return result;
  }

  std::filesystem::path path_;
};

TEST_F(Safetensors, HoldsWhatPyTorchUsersWrite) {
  // safetensors.torch.save_file({"w": torch.tensor([[1., 2.], [3., 4.]]),
  // "t": torch.tensor([5, -6])}, path, {"format": "pt"})
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("t":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
      R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}  )";
  const std::int64_t t[] = {5, -6};
  const float w[] = {1, 2, 3, 4};
  std::string data(32, '\0');
  std::memcpy(data.data(), t, sizeof t);
  std::memcpy(data.data() + 16, w, sizeof w);
  const SafetensorsFile file = open(header, data);

  EXPECT_EQ(file.entries().size(), 2U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("w").dtype, DType::kFloat32);
  EXPECT_THAT(file.at("w").shape, ElementsAre(2, 2));
  EXPECT_THAT(values<float>(file, "w"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values<std::int64_t>(file, "t"), ElementsAre(5, -6));
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_EQ(error_of([&] { file.at("x"); }), "holds no tensor 'x'");
}

TEST_F(Safetensors, OfEveryDType) {
  const std::vector<std::tuple<const char*, DType, int>> all{
      {"F64", DType::kFloat64, 8},
      {"F32", DType::kFloat32, 4},
      {"F16", DType::kFloat16, 2},
      {"BF16", DType::kBFloat16, 2},
      {"I64", DType::kInt64, 8},
      {"I32", DType::kInt32, 4},
      {"I16", DType::kInt16, 2},
      {"I8", DType::kInt8, 1},
      {"U8", DType::kUInt8, 1},
      {"BOOL", DType::kBool, 1}};
  for (const auto& [name, dtype, size] : all) {
    const SafetensorsFile file = open(
        json{{"x", entry(name, {3}, 0, 3 * size)}}.dump(),
        std::string(3 * static_cast<std::size_t>(size), 'a'));
    EXPECT_EQ(file.at("x").dtype, dtype);
    EXPECT_EQ(values<char>(file, "x").size(), 3U * size);
  }
  EXPECT_EQ(
      refusal({{"x", entry("F8_E4M3", {1}, 0, 1)}}, "a"),
      "tensor 'x' has dtype \"F8_E4M3\", expected one of F64, F32, F16, BF16, "
      "I64, I32, I16, I8, U8, BOOL");
  EXPECT_THAT(
      refusal({{"x", entry("F32", {1}, 0, 4)}, {"y", 1}}, "aaaa"),
      "tensor 'y' is not described by dtype, shape and data_offsets");
}

TEST_F(Safetensors, MayBeEmptyAndHoldScalarsAndTensorsWithoutElements) {
  EXPECT_TRUE(open("{}", "").entries().empty());
  const SafetensorsFile file = open(
      json{
          {"none", entry("F64", {0, 5}, 1, 1)},
          {"scalar", entry("I8", json::array(), 0, 1)}}
          .dump(),
      "\x7");
  EXPECT_THAT(values<char>(file, "scalar"), ElementsAre(7));
  EXPECT_TRUE(values<char>(file, "none").empty());
}

TEST_F(Safetensors, AreRefusedWhereTheyAreCutShort) {
  const std::string whole =
      json{{"x", entry("I16", {2}, 0, 4)}}.dump() + "abcd";
  const std::string bytes = length_of(whole.size() - 4) + whole;
  EXPECT_EQ(open_bytes(bytes).entries().size(), 1U);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_NE(error_of([&] { open_bytes(bytes.substr(0, size)); }), "");
  }
  EXPECT_EQ(
      error_of([&] { open_bytes("1234567"); }),
      "has 7 bytes, the length of its header alone takes 8");
  EXPECT_EQ(
      error_of([&] { open_bytes(length_of(20) + "{}"); }),
      "promises a header of 20 bytes, but has 2 after it");
  EXPECT_EQ(
      error_of([&] { open_bytes(length_of(~0ULL) + "{}"); }),
      "promises a header of 18446744073709551615 bytes, expected at most "
      "100000000");
  EXPECT_EQ(
      error_of([&] { open_bytes(bytes + "e"); }),
      "has 5 bytes of data, its tensors take 4");
}

TEST_F(Safetensors, ThatBecomeShorterAreNoticed) {
  const SafetensorsFile file =
      open(json{{"x", entry("I16", {2}, 0, 4)}}.dump(), "abcd");
  std::filesystem::resize_file(path_, file.at("x").offset + 1);
  EXPECT_THAT(
      error_of([&] { values<char>(file, "x"); }),
      HasSubstr("3 bytes early: leave it as it is while it is in use"));
  std::byte small[3];
  EXPECT_THROW(file.read(file.at("x"), small), UsageError);
}

TEST_F(Safetensors, AreRefusedWhereTheHeaderIsDamaged) {
  const auto text = [&](const std::string& header) {
    return error_of([&] { open(header, ""); });
  };
  EXPECT_EQ(text(""), "its header is no JSON object");
  EXPECT_EQ(text("[1]"), "its header is no JSON object");
  EXPECT_THAT(text("{\"a\""), HasSubstr("its header is no JSON object: "));
  EXPECT_THAT(text("{} x"), HasSubstr("its header is no JSON object: "));
  EXPECT_THAT(text("{\"a\xff\":1}"), HasSubstr("is no JSON object: "));
  EXPECT_EQ(
      text(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
           R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
      "tensor 'a' is named twice");
  EXPECT_EQ(
      text(R"({"__metadata__":{"a":1}})"),
      "its __metadata__ is not an object of strings");
  EXPECT_THAT(
      text("{\"a\":" + std::string(100'000, '[')),
      HasSubstr("is no JSON object: "));
  EXPECT_EQ(
      text(R"({"a\nb":1})"),
      "tensor 'a\\nb' is not described by dtype, shape and data_offsets");
}

TEST_F(Safetensors, AreRefusedWhereShapesAndBytesDiffer) {
  const std::string data(8, 'a');
  EXPECT_EQ(
      refusal({{"x", entry("F32", {3}, 0, 8)}}, data),
      "tensor 'x' has 8 bytes, but F32 [3] takes 12");
  EXPECT_EQ(
      refusal({{"x", entry("F32", {2}, 0, 9)}}, data),
      "tensor 'x' lies at [0,9] of 8 bytes of data");
  EXPECT_EQ(
      refusal({{"x", entry("F32", {0}, 8, 0)}}, data),
      "tensor 'x' lies at [8,0] of 8 bytes of data");
  EXPECT_EQ(
      refusal({{"x", entry("F32", {-1}, 0, 8)}}, data),
      "tensor 'x' has shape [-1], expected whole numbers of at least 0");
  EXPECT_EQ(
      refusal({{"x", entry("F32", {1.5}, 0, 8)}}, data),
      "tensor 'x' has shape [1.5], expected whole numbers of at least 0");
  EXPECT_EQ(
      refusal({{"x", entry("F32", "2", 0, 8)}}, data),
      "tensor 'x' has shape \"2\", expected whole numbers of at least 0");
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(
      refusal({{"x", entry("F32", {huge, 4}, 0, 8)}}, data),
      "tensor 'x' has a shape of more bytes than a file can hold");
}

TEST_F(Safetensors, AreRefusedWhereTensorsOverlapOrLeaveGaps) {
  const std::string data(12, 'a');
  const auto two = [&](int begin, int end) {
    return refusal(
        {{"x", entry("U8", {6}, 0, 6)},
         {"y", entry("U8", {end - begin}, begin, end)}},
        data);
  };
  EXPECT_EQ(two(6, 12), "");
  EXPECT_EQ(
      two(5, 12),
      "tensor 'y' begins at byte 5 of the data, expected 6, where the one "
      "before it ends");
  EXPECT_EQ(
      two(7, 12),
      "tensor 'y' begins at byte 7 of the data, expected 6, where the one "
      "before it ends");
  EXPECT_EQ(two(6, 11), "has 12 bytes of data, its tensors take 11");
}

TEST_F(Safetensors, AreRegularFiles) {
  EXPECT_EQ(
      error_of([&] { SafetensorsFile{path_}; }),
      "cannot be read: No such file or directory");
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { SafetensorsFile{path_}; }), "is no regular file");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(error_of([&] { SafetensorsFile{path_}; }), "is no regular file");
}

} // namespace
} // namespace fsdp
