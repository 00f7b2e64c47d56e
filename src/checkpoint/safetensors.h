#pragma once
// Reading a safetensors file: a header of JSON that names tensors, then their
// bytes, little-endian, row by row.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/unique_fd.h"

namespace fsdp {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape; ///< empty: one element
  std::uint64_t offset = 0;        ///< of its first byte in the file
  std::uint64_t num_bytes = 0;
};

/// What is known of a file after its header was checked.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries; ///< by offset
  std::map<std::string, std::string> metadata;
};

/// An open file. Nothing of the tensors is read before read(). Const calls may
/// run on several threads at once.
class SafetensorsFile {
 public:
  /// Opens `path` and checks the whole header against the file's length: each
  /// tensor's bytes fit its dtype and shape, and all of them lie one after the
  /// other from the header's end to the file's. Throws DataError where that
  /// does not hold, for a dtype other than F64, F32, F16, BF16, I64, I32, I16,
  /// I8, U8 and BOOL, and for what is not a regular file.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }
  const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }

  /// Null if there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Throws DataError naming the tensor if there is none.
  const SafetensorsEntry& at(std::string_view name) const;

  /// Fills `out`, of entry.num_bytes bytes, with the tensor. Throws DataError
  /// if the file has become shorter, UsageError if `out` has another size.
  void read(const SafetensorsEntry& entry, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  SafetensorsHeader header_;
  std::map<std::string_view, std::size_t> index_; ///< into the entries
};

/// The tensors that the `json` of a file says it holds, where their bytes begin
/// at `data_begin` of `file_bytes`. Throws DataError, naming `path`.
SafetensorsHeader parse_safetensors_header(
    const std::filesystem::path& path,
    std::string_view json,
    std::uint64_t data_begin,
    std::uint64_t file_bytes);

} // namespace fsdp
