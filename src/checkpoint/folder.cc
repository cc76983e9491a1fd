// Design: a folder is classified by the names of its files and the contents of
// its indexes only. One pass records which files open a directory, which files
// are shards by their names, and which indexes there are. Then each file is a
// checkpoint, part of one, or neither. Listings and bulk commands use the same
// object, so a folder looks the same to every command.
//
// Alternative not taken: read the heads of files to recognise shards with other
// names. For a server, that would take a request per file.

#include "checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/dcp_shards.h"
#include "checkpoint/sharded_index.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/open.h"
#include "io/temporary_file.h"
#include "net/http_source.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNamed = 10;  // In a message.
// Files that open a directory of torch.distributed.checkpoint: one that ranks
// saved together, and one that each saved on its own.
constexpr std::string_view kDirectoryNames[] = {".metadata", "__0.metadata"};

template <typename Iterator>
Result<std::vector<std::string>> ListBy(std::string_view folder) {
  std::vector<std::string> files;
  std::error_code error;
  std::error_code ignored;
  fs::path listed(folder);  // The folder that is listed, or opened next.
  for (Iterator it(listed, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file(ignored)) files.push_back(it->path().native());
    listed = it->is_directory(ignored) ? it->path() : it->path().parent_path();
  }
  if (error) {
    return Status::FromErrno(
        error.value(), fmt::format("cannot list {}", Quote(listed.native())));
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

// Returns the part after the last slash.
std::string LastPart(std::string_view name) {
  return std::string(name.substr(name.rfind('/') + 1));
}

// Returns the name of a neighbour of `file`, in the form that the file's source
// opens.
std::string Beside(const std::string& file, const std::string& name) {
  if (file.find("://") != file.npos) {  // In a URL every byte is significant.
    return file.substr(0, file.rfind('/') + 1) + name;
  }
  return (fs::path(file).parent_path() / name).lexically_normal().native();
}

bool IsIndex(const std::string& name) { return name.ends_with(kIndexSuffix); }

// Returns whether the file opens a directory. For files of ranks, only the
// first does.
bool OpensDirectory(const std::string& name) {
  const std::string last = LastPart(name);
  return std::ranges::find(kDirectoryNames, last) != std::end(kDirectoryNames);
}

bool HasSuffix(const std::string& name) {
  return FormatBySuffix(name) != nullptr;
}

bool IsNamedAsShard(const std::string& name) {
  return LastPart(name).find("-of-") != name.npos;
}

// Returns the part before the last component, with the slash.
std::string FolderOf(const std::string& name) {
  return name.substr(0, name.rfind('/') + 1);
}

// Returns whether files are named as the parts of one checkpoint.
bool AreNamedAsParts(std::span<const std::string_view> names) {
  const FormatEntry* format = FormatBySuffix(names.front());
  return format != nullptr && format->place != nullptr &&
         format->place->are_names(names);
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
  FolderFiles together(remote);
  for (const std::string& name : files) together.Note(name);
  const bool is_one = !together.Folders().empty();
  for (const auto fits : {IsIndex, HasSuffix}) {
    Found found;
    std::ranges::copy_if(files, std::back_inserter(found), fits);
    // What is left of a set is not a checkpoint, nor is one of its shards.
    if (std::ranges::any_of(found, IsNamedAsShard) &&
        !FindTemporary(std::string(folder) + "/").empty()) {
      return Status(Code::kNotFound,
                    fmt::format("folder {} holds no whole checkpoint: a save "
                                "into it goes on, or did not end",
                                Quote(folder)));
    }
    if (found.size() == 1 || (is_one && !found.empty())) return found;
    if (found.size() > 1) {
      const std::vector<std::string_view> names(found.begin(), found.end());
      if (AreNamedAsParts(names)) return found;
      std::ranges::transform(found, found.begin(), LastPart);
      return Several(found, folder);
    }
  }
  return Status(Code::kNotFound,
                fmt::format("folder {} holds no checkpoint: expected an index "
                            "of shards, or a file that ends as checkpoints do",
                            Quote(folder)));
}

// Returns the files that the index `name` lists; nullopt for JSON that is not
// an index.
std::optional<std::vector<std::string>> ShardsOf(const std::string& name,
                                                 const RemoteOptions& remote) {
  std::vector<std::string> shards;
  const auto source =
      OpenSource(name, {.io = IoMode::kPread, .remote = remote});
  const ParseLimits limits;
  if (!source.ok() || (*source)->size() > limits.max_header_bytes) {
    return shards;
  }
  std::vector<std::byte> json((*source)->size());
  if (!(*source)->ReadAt(0, json).ok()) return shards;
  const auto index = ParseShardedIndex(json, Strictness::kLenient, limits);
  if (!index.ok()) {
    if (index.status().code() == Code::kUnsupported) return std::nullopt;
    return shards;
  }
  for (const std::string& file : index->files) {
    shards.push_back(Beside(name, file));
  }
  return shards;
}

enum class Kept : uint8_t {
  kWhole,  // Every file that is not part of a directory.
  kCheckpoints,
};

// Returns the selected files of a folder, and the folders that are checkpoints,
// sorted.
Result<std::vector<std::string>> ListKept(std::string_view folder,
                                          const RemoteOptions& remote,
                                          Kept kept) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    HAULWAY_ASSIGN(std::vector<std::string> names,
                   ListFolder(folder, Depth::kRecursive, remote));
    FolderFiles files(remote);
    for (const std::string& name : names) files.Note(name);
    if (kept == Kept::kCheckpoints) files.ReadIndexes();
    std::erase_if(names, [&](const std::string& name) {
      return kept == Kept::kWhole ? files.IsPart(name)
                                  : !files.IsCheckpoint(name);
    });
    std::ranges::copy(files.Folders(), std::back_inserter(names));
    std::ranges::sort(names);
    return names;
  });
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

FolderFiles::FolderFiles(RemoteOptions remote) : remote_(std::move(remote)) {}

void FolderFiles::Note(const std::string& name) {
  const bool opens = OpensDirectory(name);
  const bool is_index = IsIndex(name);
  if (!opens && !is_index && !HasSuffix(name)) return;
  Folder& folder = folders_[FolderOf(name)];
  // If both files exist, the one of all ranks counts.
  if (opens && (folder.opened_by.empty() || name < folder.opened_by)) {
    folder.opened_by = name;
  }
  if (is_index) unread_.push_back(name);
  ++(IsNamedAsDcpShard(name) ? folder.shards : folder.others);
}

bool FolderFiles::IsOne(const Folder& folder) {
  return folder.shards != 0 && folder.others == 0;
}

std::vector<std::string> FolderFiles::Folders() const {
  std::vector<std::string> folders;
  for (const auto& [name, folder] : folders_) {
    if (IsOne(folder)) folders.push_back(name);
  }
  return folders;
}

bool FolderFiles::IsPart(const std::string& name) const {
  const auto found = folders_.find(FolderOf(name));
  if (found == folders_.end()) return false;
  if (IsOne(found->second)) return IsNamedAsDcpShard(name);
  const std::string& opened_by = found->second.opened_by;
  if (opened_by.empty() || opened_by == name) return false;
  const std::string last = LastPart(name);
  return last.ends_with(".distcp") || last == "meta.pt" ||
         (last.starts_with("__") && last.ends_with(".metadata"));
}

void FolderFiles::ReadIndexes() {
  for (const std::string& name : unread_) {
    const auto shards = ShardsOf(name, remote_);
    if (shards.has_value()) {
      shards_.insert(shards->begin(), shards->end());
    } else {
      not_indexes_.insert(name);
    }
  }
  unread_.clear();
}

bool FolderFiles::IsCheckpoint(const std::string& name) const {
  if (!IsIndex(name) && !OpensDirectory(name) && !HasSuffix(name)) return false;
  return !not_indexes_.contains(name) && !IsPart(name) &&
         !shards_.contains(Beside(name, LastPart(name)));
}

Result<std::vector<std::string>> ListFilesToVerify(
    std::string_view folder, const RemoteOptions& remote) {
  return ListKept(folder, remote, Kept::kWhole);
}

Result<std::vector<std::string>> ListCheckpoints(std::string_view folder,
                                                 const RemoteOptions& remote) {
  return ListKept(folder, remote, Kept::kCheckpoints);
}

}  // namespace haulway
