#pragma once
// The training and the validation part of what --data names.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "train/data/token_source.h"

namespace fsdp {

struct Corpus {
  std::shared_ptr<const TokenSource> train;
  std::shared_ptr<const TokenSource> validation;
  /// The same two as text; null for token files.
  std::shared_ptr<const ByteSource> train_text;
  std::shared_ptr<const ByteSource> validation_text;
  std::string description; ///< one line for the run's header
};

/// What a path is taken for:
///  - a file *.bin or a folder that holds some: token files. In a folder those
///    whose name contains "val" are validation, the others training, in the
///    order of their paths; without any "val" the last 5 % of the tokens are;
///  - any other file: text, whose last 5 % are validation;
///  - any other folder: text, all files below it in the order of their paths
///    relative to it (byte by byte), every 20th of them validation; below 20
///    files the last 5 % of all text is. Hidden files and folders, links and
///    files with a zero byte in their first 4 KiB are left out, the last
///    counted in the description. `extension` (".py"), if not empty, keeps
///    files that end so and no others.
///
/// Throws DataError, naming the path: unreadable, neither a regular file nor a
/// folder (a pipe, a device), an empty folder, either part shorter than
/// `min_tokens`, a token (or byte) not below `vocab_size`.
Corpus open_corpus(
    const std::filesystem::path& path,
    std::int64_t vocab_size,
    std::int64_t min_tokens,
    const std::string& extension = "");

/// The Python sources beside the LibTorch that this process runs, or those of
/// the one it was built with. Throws DataError with what to do if neither holds
/// any (a LibTorch that did not come from a wheel).
std::filesystem::path default_text_folder();

} // namespace fsdp
