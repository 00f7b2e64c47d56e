#include "train/data/corpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

#include <c10/core/Allocator.h>

#include "fsdp/error.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kValidationStride = 20;
constexpr std::size_t kSniffBytes = 4096;

using Bytes = std::vector<std::uint8_t>;

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw DataError("--data '" + path.string() + "': " + what);
}

Bytes read_file(const fs::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rb"), &std::fclose);
  Bytes bytes;
  std::size_t size = 0;
  while (file != nullptr && std::ferror(file.get()) == 0 &&
         std::feof(file.get()) == 0) {
    constexpr std::size_t kChunk = std::size_t{1} << 16;
    bytes.resize(size + kChunk);
    size += std::fread(bytes.data() + size, 1, kChunk, file.get());
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    fail(path, std::string("cannot be read: ") + std::strerror(errno));
  }
  bytes.resize(size);
  return bytes;
}

bool looks_binary(const Bytes& bytes) {
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(
                                       std::min(bytes.size(), kSniffBytes));
  return std::find(bytes.begin(), end, std::uint8_t{0}) != end;
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Paths of the regular files below `folder`, in byte order of their relative
/// paths; links and hidden entries are left out.
std::vector<fs::path> list_files(const fs::path& folder) {
  std::vector<fs::path> files;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder);
         entry != fs::recursive_directory_iterator();
         ++entry) {
      if (is_hidden(entry->path())) {
        entry.disable_recursion_pending();
      } else if (!entry->is_symlink() && entry->is_regular_file()) {
        files.push_back(entry->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail(folder, "cannot be listed: " + error.code().message());
  }
  const auto relative = [&](const fs::path& file) {
    return file.lexically_relative(folder).generic_string();
  };
  std::ranges::sort(files, {}, relative);
  return files;
}

std::int64_t split_point(std::int64_t size) {
  return size - size / static_cast<std::int64_t>(kValidationStride);
}

std::string megabytes(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

Corpus text_corpus(Bytes train, Bytes validation, std::string description) {
  Corpus corpus;
  corpus.train_text = std::make_shared<const ByteSource>(std::move(train));
  corpus.validation_text =
      std::make_shared<const ByteSource>(std::move(validation));
  corpus.train = corpus.train_text;
  corpus.validation = corpus.validation_text;
  corpus.description = std::move(description);
  return corpus;
}

/// The last 5 % of `bytes` are validation.
Corpus split_text(Bytes bytes, std::string description) {
  const auto middle =
      bytes.begin() + split_point(static_cast<std::int64_t>(bytes.size()));
  Bytes validation(middle, bytes.end());
  bytes.erase(middle, bytes.end());
  return text_corpus(
      std::move(bytes), std::move(validation), std::move(description));
}

Corpus open_text_folder(
    const fs::path& folder,
    const std::vector<fs::path>& paths,
    const std::string& extension) {
  std::vector<Bytes> files;
  std::size_t num_binary = 0;
  for (const fs::path& path : paths) {
    if (!extension.empty() && path.extension() != extension) {
      continue;
    }
    Bytes bytes = read_file(path);
    if (looks_binary(bytes)) {
      ++num_binary;
    } else {
      files.push_back(std::move(bytes));
    }
  }
  if (files.empty()) {
    fail(
        folder,
        "holds no " + (extension.empty() ? "text" : extension) + " file");
  }

  const bool by_file = files.size() >= kValidationStride;
  Bytes train;
  Bytes validation;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool is_validation =
        by_file && i % kValidationStride == kValidationStride - 1;
    Bytes& part = is_validation ? validation : train;
    part.insert(part.end(), files[i].begin(), files[i].end());
  }
  std::string description =
      std::to_string(files.size()) + " " +
      (extension.empty() ? "text" : extension) + " files of " +
      folder.string() + ", " +
      megabytes(static_cast<std::int64_t>(train.size() + validation.size())) +
      (by_file ? ", every 20th for validation" : ", last 5 % for validation");
  if (num_binary > 0) {
    description += ", " + std::to_string(num_binary) + " binary files left out";
  }
  return by_file ? text_corpus(
                       std::move(train),
                       std::move(validation),
                       std::move(description))
                 : split_text(std::move(train), std::move(description));
}

Corpus open_token_files(
    const fs::path& path,
    const std::vector<fs::path>& paths,
    std::int64_t vocab_size) {
  std::vector<std::shared_ptr<const TokenSource>> train;
  std::vector<std::shared_ptr<const TokenSource>> validation;
  for (const fs::path& file : paths) {
    const bool is_validation =
        file.filename().string().find("val") != std::string::npos &&
        paths.size() > 1;
    (is_validation ? validation : train)
        .push_back(open_token_file(file, vocab_size));
  }
  if (train.empty()) {
    fail(path, "every .bin file there is a validation file by its name");
  }
  Corpus corpus;
  corpus.train = concatenate(std::move(train));
  const bool by_name = !validation.empty();
  if (by_name) {
    corpus.validation = concatenate(std::move(validation));
  } else {
    const std::int64_t size = corpus.train->size();
    corpus.validation = slice(corpus.train, split_point(size), size);
    corpus.train = slice(corpus.train, 0, split_point(size));
  }
  corpus.description =
      std::to_string(paths.size()) + " token file(s) of " + path.string() +
      ", " + std::to_string(corpus.train->size() + corpus.validation->size()) +
      " tokens" +
      (by_name ? ", validation by name" : ", last 5 % for validation");
  return corpus;
}

Corpus open_folder(
    const fs::path& path,
    std::int64_t vocab_size,
    const std::string& extension) {
  const std::vector<fs::path> files = list_files(path);
  if (files.empty()) {
    fail(path, "the folder holds no file");
  }
  std::vector<fs::path> token_files;
  std::ranges::copy_if(
      files, std::back_inserter(token_files), [](const fs::path& file) {
        return file.extension() == ".bin";
      });
  return token_files.empty() || !extension.empty()
             ? open_text_folder(path, files, extension)
             : open_token_files(path, token_files, vocab_size);
}

/// The folder above lib/libc10.so, as this process has loaded it.
fs::path running_libtorch() {
  Dl_info info{};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast)
  const auto* symbol = reinterpret_cast<const void*>(&c10::GetAllocator);
  if (::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  return fs::path(info.dli_fname).parent_path().parent_path();
}

} // namespace

Corpus open_corpus(
    const fs::path& path,
    std::int64_t vocab_size,
    std::int64_t min_tokens,
    const std::string& extension) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) {
    fail(path, "cannot be read: " + error.message());
  }
  Corpus corpus;
  if (fs::is_directory(status)) {
    corpus = open_folder(path, vocab_size, extension);
  } else if (!fs::is_regular_file(status)) {
    fail(path, "is no regular file and no folder"); // a pipe may never end
  } else if (path.extension() == ".bin") {
    corpus = open_token_files(path, {path}, vocab_size);
  } else {
    Bytes bytes = read_file(path);
    std::string description =
        "text of " + path.string() + ", " +
        megabytes(static_cast<std::int64_t>(bytes.size())) +
        ", last 5 % for validation";
    corpus = split_text(std::move(bytes), std::move(description));
  }

  if (corpus.train_text != nullptr && vocab_size < 256) {
    fail(
        path,
        "text needs a vocabulary of 256 bytes, the model's holds " +
            std::to_string(vocab_size));
  }
  for (const auto& [part, name] :
       {std::pair(corpus.train, "training"),
        std::pair(corpus.validation, "validation")}) {
    if (part->size() < min_tokens) {
      fail(
          path,
          "too short: the " + std::string(name) + " part holds " +
              std::to_string(part->size()) + " tokens, at least " +
              std::to_string(min_tokens) + " are needed (--seq and one more)");
    }
  }
  return corpus;
}

fs::path default_text_folder() {
  const fs::path running = running_libtorch();
  // Of a wheel; a plain LibTorch holds a handful of scripts at most.
  std::error_code error;
  if (!running.empty() && fs::exists(running / "__init__.py", error)) {
    return running;
  }
  throw DataError(
      "no --data given, and LibTorch in '" + running.string() +
      "' came without the Python sources that are the default text: name a "
      "file or folder with --data");
}

} // namespace fsdp
