// What lies in a folder.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/sharded_index.h"
#include "haulway/format.h"
#include "haulway/open.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

// In the order in which transformers looks for them.
constexpr std::string_view kUsualNames[] = {
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
};
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr size_t kMostNamed = 10;  // In a message.

Status CannotList(const std::error_code& error, std::string_view folder) {
  return Status::FromErrno(error.value(),
                           fmt::format("cannot list {}", Quote(folder)));
}

// The names of the files in a folder, sorted. What links lead to counts.
Result<std::vector<std::string>> NamesIn(std::string_view folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(fs::path(folder), error), end;
       !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) {
      names.push_back(it->path().filename().native());
    }
  }
  if (error) return CannotList(error, folder);
  std::ranges::sort(names);
  return names;
}

Status Several(const std::vector<std::string>& names, std::string_view folder) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", Quote(names[i]));
  }
  if (names.size() > kMostNamed) {
    text += fmt::format(" and {} more", names.size() - kMostNamed);
  }
  return Status(Code::kInvalidArgument,
                fmt::format("folder {} holds several checkpoints, and no index "
                            "that joins them: expected one, found {}",
                            Quote(folder), text));
}

std::string Joined(std::string_view folder, std::string_view name) {
  return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

Result<std::string> Find(std::string_view folder) {
  HAULWAY_ASSIGN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string_view usual : kUsualNames) {
    if (std::ranges::binary_search(names, usual)) return Joined(folder, usual);
  }
  const auto is_index = [](const std::string& name) {
    return name.ends_with(kIndexSuffix);
  };
  const auto is_checkpoint = [](const std::string& name) {
    return FormatBySuffix(name) != nullptr;
  };
  for (const std::function<bool(const std::string&)>& fits :
       {std::function(is_index), std::function(is_checkpoint)}) {
    std::vector<std::string> found;
    std::ranges::copy_if(names, std::back_inserter(found), fits);
    if (found.size() > 1) return Several(found, folder);
    if (found.size() == 1) return Joined(folder, found.front());
  }
  return Status(Code::kNotFound,
                fmt::format("folder {} holds no checkpoint: expected an index "
                            "of shards, or a file that ends as checkpoints do",
                            Quote(folder)));
}

// Adds the paths of the files that the index `path` names. Returns false for
// JSON that is no index.
bool AddShards(const std::string& path, std::set<std::string>* shards) {
  const auto source = OpenFileSource(path);
  const ParseLimits limits;
  if (!source.ok() || (*source)->size() > limits.max_header_bytes) return true;
  std::vector<std::byte> json((*source)->size());
  if (!(*source)->ReadAt(0, json).ok()) return true;
  const auto index = ParseShardedIndex(json, Strictness::kLenient, limits);
  if (!index.ok()) return index.status().code() != Code::kUnsupported;
  const fs::path folder = fs::path(path).parent_path();
  for (const std::string& file : index->files) {
    shards->insert((folder / file).lexically_normal().native());
  }
  return true;
}

}  // namespace

bool IsFolder(std::string_view uri) {
  std::error_code ignored;
  return fs::is_directory(fs::path(uri), ignored);
}

Result<std::string> FindCheckpoint(std::string_view folder) {
  return OrNoMemory([&] { return Find(folder); });
}

Result<std::vector<std::string>> ListFiles(std::string_view folder) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::recursive_directory_iterator it(fs::path(folder), error), end;
         !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (it->is_regular_file(ignored)) files.push_back(it->path().native());
    }
    if (error) return CannotList(error, folder);
    std::ranges::sort(files);
    return files;
  });
}

Result<std::vector<std::string>> ListCheckpoints(std::string_view folder) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    HAULWAY_ASSIGN(std::vector<std::string> files, ListFiles(folder));
    std::set<std::string> shards;
    std::erase_if(files, [&](const std::string& path) {
      if (path.ends_with(kIndexSuffix)) return !AddShards(path, &shards);
      return FormatBySuffix(path) == nullptr;
    });
    std::erase_if(files, [&](const std::string& path) {
      return shards.contains(fs::path(path).lexically_normal().native());
    });
    return files;
  });
}

}  // namespace haulway
