#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/safetensors.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr auto kMaxElements =
    static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

constexpr std::array<std::pair<std::string_view, DType>, 10> kDTypes{{
    {"F64", DType::kFloat64},
    {"F32", DType::kFloat32},
    {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16},
    {"I64", DType::kInt64},
    {"I32", DType::kInt32},
    {"I16", DType::kInt16},
    {"I8", DType::kInt8},
    {"U8", DType::kUInt8},
    {"BOOL", DType::kBool},
}};

class HeaderParser {
 public:
  HeaderParser(
      const std::filesystem::path& path,
      std::uint64_t data_begin,
      std::uint64_t file_bytes)
      : path_(path), data_begin_(data_begin), file_bytes_(file_bytes) {}

  SafetensorsHeader parse(std::string_view text) {
    const json root = parse_json(text);
    SafetensorsHeader header;
    for (const auto& [name, value] : root.items()) {
      if (name == kMetadata) {
        header.metadata = metadata(value);
      } else {
        header.entries.push_back(entry(name, value));
      }
    }
    std::ranges::sort(header.entries, [](const auto& a, const auto& b) {
      return std::pair(a.offset, a.num_bytes) <
             std::pair(b.offset, b.num_bytes);
    });
    check_places(header.entries);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("safetensors file '" + path_.string() + "': " + what);
  }

  [[noreturn]] void fail(
      const std::string& name, const std::string& what) const {
    const std::string quoted = json(name).dump(); // no line break is left in it
    fail("tensor '" + quoted.substr(1, quoted.size() - 2) + "' " + what);
  }

  json parse_json(std::string_view text) const {
    if (!text.starts_with('{')) {
      fail("its header is no JSON object");
    }
    std::set<std::string> names;
    std::string twice;
    const auto see = [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::key && depth == 1 &&
          !names.insert(value.get<std::string>()).second) {
        twice = value.get<std::string>();
      }
      return true;
    };
    json root;
    try {
      root = json::parse(text, see);
    } catch (const json::exception& error) {
      fail(std::string("its header is no JSON object: ") + error.what());
    }
    if (!twice.empty()) {
      fail(twice, "is named twice");
    }
    return root;
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    std::map<std::string, std::string> result;
    const bool is_text =
        value.is_object() && std::ranges::all_of(value, [](const json& item) {
          return item.is_string();
        });
    if (!is_text) {
      fail("its __metadata__ is not an object of strings");
    }
    for (const auto& [key, text] : value.items()) {
      result.emplace(key, text.get<std::string>());
    }
    return result;
  }

  SafetensorsEntry entry(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
        !value.contains("shape") || !value.contains("data_offsets")) {
      fail(name, "is not described by dtype, shape and data_offsets");
    }
    SafetensorsEntry result;
    result.name = name;
    result.dtype = dtype(name, value["dtype"]);
    const std::vector<std::uint64_t> sizes = numbers(name, value, "shape");
    const std::uint64_t expected = bytes_of(name, sizes, size_of(result.dtype));
    for (const std::uint64_t size : sizes) {
      result.shape.push_back(static_cast<std::int64_t>(size));
    }
    const std::vector<std::uint64_t> ends =
        numbers(name, value, "data_offsets");
    const std::uint64_t data_bytes = file_bytes_ - data_begin_;
    if (ends.size() != 2 || ends[0] > ends[1] || ends[1] > data_bytes) {
      fail(
          name,
          "lies at " + value["data_offsets"].dump() + " of " +
              std::to_string(data_bytes) + " bytes of data");
    }
    result.offset = data_begin_ + ends[0];
    result.num_bytes = ends[1] - ends[0];
    if (result.num_bytes != expected) {
      fail(
          name,
          "has " + std::to_string(result.num_bytes) + " bytes, but " +
              value["dtype"].get<std::string>() + " " + value["shape"].dump() +
              " takes " + std::to_string(expected));
    }
    return result;
  }

  DType dtype(const std::string& name, const json& value) const {
    const auto found = std::ranges::find_if(
        kDTypes, [&](const auto& known) { return value == known.first; });
    if (found == kDTypes.end()) {
      std::string list;
      for (const auto& [known, unused] : kDTypes) {
        list += (list.empty() ? "" : ", ") + std::string(known);
      }
      fail(name, "has dtype " + value.dump() + ", expected one of " + list);
    }
    return found->second;
  }

  std::vector<std::uint64_t> numbers(
      const std::string& name, const json& value, const char* key) const {
    const json& list = value[key];
    const bool are_numbers =
        list.is_array() && std::ranges::all_of(list, [](const json& item) {
          return item.is_number_unsigned() &&
                 item.get<std::uint64_t>() <= kMaxElements;
        });
    if (!are_numbers) {
      fail(
          name,
          std::string("has ") + key + " " + list.dump().substr(0, 100) +
              ", expected whole numbers of at least 0");
    }
    return list.get<std::vector<std::uint64_t>>();
  }

  std::uint64_t bytes_of(
      const std::string& name,
      const std::vector<std::uint64_t>& sizes,
      std::size_t element) const {
    if (std::ranges::find(sizes, 0U) != sizes.end()) {
      return 0;
    }
    std::uint64_t bytes = element;
    for (const std::uint64_t size : sizes) {
      if (bytes > kMaxElements / size) {
        fail(name, "has a shape of more bytes than a file can hold");
      }
      bytes *= size;
    }
    return bytes;
  }

  /// Bytes that belong to two tensors or to none are a damaged header, or a
  /// place to hide something in.
  void check_places(const std::vector<SafetensorsEntry>& by_offset) const {
    std::uint64_t end = data_begin_;
    for (const SafetensorsEntry& entry : by_offset) {
      if (entry.offset != end) {
        fail(
            entry.name,
            "begins at byte " + std::to_string(entry.offset - data_begin_) +
                " of the data, expected " + std::to_string(end - data_begin_) +
                ", where the one before it ends");
      }
      end += entry.num_bytes;
    }
    if (end != file_bytes_) {
      fail(
          "has " + std::to_string(file_bytes_ - data_begin_) +
          " bytes of data, its tensors take " +
          std::to_string(end - data_begin_));
    }
  }

  const std::filesystem::path& path_;
  std::uint64_t data_begin_;
  std::uint64_t file_bytes_;
};

} // namespace

SafetensorsHeader parse_safetensors_header(
    const std::filesystem::path& path,
    std::string_view json,
    std::uint64_t data_begin,
    std::uint64_t file_bytes) {
  return HeaderParser(path, data_begin, file_bytes).parse(json);
}

} // namespace fsdp
