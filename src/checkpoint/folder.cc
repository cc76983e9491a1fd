#include "checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/dcp_shards.h"
#include "checkpoint/sharded_index.h"
#include "haulway/dcp.h"
#include "haulway/format.h"
#include "haulway/open.h"
#include "net/http_source.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr size_t kMostNamed = 10;  // In a message.
// What a directory of torch.distributed.checkpoint is opened by: what ranks
// saved together, and on their own.
constexpr std::string_view kDirectoryNames[] = {".metadata", "__0.metadata"};

template <typename Iterator>
Result<std::vector<std::string>> ListBy(std::string_view folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (Iterator it(fs::path(folder), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) files.push_back(it->path().native());
  }
  if (error) {
    return Status::FromErrno(error.value(),
                             fmt::format("cannot list {}", Quote(folder)));
  }
  std::ranges::sort(files);
  return files;
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

// Behind the last slash.
std::string LastPart(std::string_view name) {
  return std::string(name.substr(name.rfind('/') + 1));
}

// The name of what is beside a file, as the file's own source opens it.
std::string Beside(const std::string& file, const std::string& name) {
  if (file.find("://") != file.npos) {  // Every byte of it counts.
    return file.substr(0, file.rfind('/') + 1) + name;
  }
  return (fs::path(file).parent_path() / name).lexically_normal().native();
}

bool IsIndex(const std::string& name) { return name.ends_with(kIndexSuffix); }

// What the directory is opened by; of those of ranks only the first.
bool OpensDirectory(const std::string& name) {
  const std::string last = LastPart(name);
  return std::ranges::find(kDirectoryNames, last) != std::end(kDirectoryNames);
}

// The parts of directories of torch.distributed.checkpoint among some files:
// what the file that opens a directory stands for.
class DcpParts {
 public:
  // Requires: `files` are sorted, so that `.metadata` comes first.
  explicit DcpParts(const std::vector<std::string>& files) {
    for (const std::string& name : files) {
      if (OpensDirectory(name)) opened_by_.try_emplace(FolderOf(name), name);
    }
  }

  bool Has(const std::string& name) const {
    const auto found = opened_by_.find(FolderOf(name));
    if (found == opened_by_.end() || found->second == name) return false;
    const std::string last = LastPart(name);
    return last.ends_with(".distcp") || last == "meta.pt" ||
           (last.starts_with("__") && last.ends_with(".metadata"));
  }

 private:
  static std::string FolderOf(const std::string& name) {
    return name.substr(0, name.rfind('/') + 1);
  }

  std::map<std::string, std::string> opened_by_;
};

bool IsCheckpoint(const std::string& name) {
  return FormatBySuffix(name) != nullptr;
}

Result<std::vector<std::string>> Find(std::string_view folder,
                                      const RemoteOptions& remote) {
  using Found = std::vector<std::string>;
  HAULWAY_ASSIGN(const std::vector<std::string> files,
                 ListFolder(folder, Depth::kFolder, remote));
  for (const std::string_view usual : kDirectoryNames) {
    const auto found = std::ranges::find(files, usual, LastPart);
    if (found != files.end()) return Found{*found};
  }
  for (const std::string_view usual : net::kCheckpointNames) {
    const auto found = std::ranges::find(files, usual, LastPart);
    if (found != files.end()) return Found{*found};
  }
  for (const auto fits : {IsIndex, IsCheckpoint}) {
    Found found;
    std::ranges::copy_if(files, std::back_inserter(found), fits);
    if (!found.empty() && std::ranges::all_of(found, IsNamedAsDcpShard)) {
      return found;
    }
    if (found.size() == 1) return found;
    if (found.size() > 1) {
      std::ranges::transform(found, found.begin(), LastPart);
      return Several(found, folder);
    }
  }
  return Status(Code::kNotFound,
                fmt::format("folder {} holds no checkpoint: expected an index "
                            "of shards, or a file that ends as checkpoints do",
                            Quote(folder)));
}

// Adds the names of the files that the index `name` names. Returns false for
// JSON that is no index.
bool AddShards(const std::string& name, const RemoteOptions& remote,
               std::set<std::string>* shards) {
  const auto source =
      OpenSource(name, {.io = IoMode::kPread, .remote = remote});
  const ParseLimits limits;
  if (!source.ok() || (*source)->size() > limits.max_header_bytes) return true;
  std::vector<std::byte> json((*source)->size());
  if (!(*source)->ReadAt(0, json).ok()) return true;
  const auto index = ParseShardedIndex(json, Strictness::kLenient, limits);
  if (!index.ok()) return index.status().code() != Code::kUnsupported;
  for (const std::string& file : index->files) {
    shards->insert(Beside(name, file));
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> ListPath(std::string_view folder, Depth depth,
                                          const RemoteOptions&) {
  return depth == Depth::kFolder
             ? ListBy<fs::directory_iterator>(folder)
             : ListBy<fs::recursive_directory_iterator>(folder);
}

Result<std::string> FindCheckpoint(std::string_view folder,
                                   const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::string> {
    HAULWAY_ASSIGN(std::vector<std::string> files, Find(folder, remote));
    if (files.size() == 1) return std::move(files.front());
    std::ranges::transform(files, files.begin(), LastPart);
    return Several(files, folder);
  });
}

Result<std::vector<std::string>> FindFiles(std::string_view folder,
                                           const RemoteOptions& remote) {
  return OrNoMemory([&] { return Find(folder, remote); });
}

Result<std::vector<std::string>> ListFiles(std::string_view folder,
                                           const RemoteOptions& remote) {
  return OrNoMemory(
      [&] { return ListFolder(folder, Depth::kRecursive, remote); });
}

Result<std::vector<std::string>> ListFilesToVerify(
    std::string_view folder, const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    HAULWAY_ASSIGN(std::vector<std::string> files,
                   ListFolder(folder, Depth::kRecursive, remote));
    const DcpParts parts(files);
    std::erase_if(files,
                  [&](const std::string& name) { return parts.Has(name); });
    return files;
  });
}

Result<std::vector<std::string>> ListCheckpoints(std::string_view folder,
                                                 const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    HAULWAY_ASSIGN(std::vector<std::string> files,
                   ListFolder(folder, Depth::kRecursive, remote));
    const DcpParts parts(files);
    std::set<std::string> shards;
    std::erase_if(files, [&](const std::string& name) {
      return IsIndex(name) ? !AddShards(name, remote, &shards)
                           : !IsCheckpoint(name) && !OpensDirectory(name);
    });
    std::erase_if(files, [&](const std::string& name) {
      return parts.Has(name) || shards.contains(Beside(name, LastPart(name)));
    });
    return files;
  });
}

}  // namespace haulway
