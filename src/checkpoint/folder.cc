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
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/dcp_shards.h"
#include "checkpoint/sharded_index.h"
#include "haulway/file_set.h"
#include "haulway/folder.h"
#include "haulway/format.h"
#include "haulway/open.h"
#include "io/model_names.h"
#include "io/temporary_file.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

// How deep, and how far, a folder without a checkpoint is searched for the
// folders to name instead.
constexpr int kDepthNamed = 1;
constexpr int kMostSearched = 10'000;
// DeepSpeed's file with the name of the folder that it wrote last.
constexpr std::string_view kLatest = "latest";

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

// Returns the name of a neighbour of `file`, in the form that the file's source
// opens.
std::string Beside(const std::string& file, const std::string& name) {
  if (file.find("://") != file.npos) {  // In a URL every byte is significant.
    return file.substr(0, file.rfind('/') + 1) + name;
  }
  return (fs::path(file).parent_path() / name).lexically_normal().native();
}

bool IsNamedAsShard(const std::string& name) {
  return LastPart(name).find("-of-") != name.npos;
}

// Returns the part before the last component, with the slash.
std::string FolderOf(const std::string& name) {
  return name.substr(0, name.rfind('/') + 1);
}

bool IsIndex(const std::string& name) { return IsIndexName(LastPart(name)); }

bool HasPlace(std::string_view name) {
  const FormatEntry* format = FormatBySuffix(name);
  return format != nullptr && format->place != nullptr;
}

// Returns files below a folder: all that are not too deep, or those that come
// first.
std::vector<std::string> SomeFilesBelow(std::string_view folder,
                                        const RemoteOptions& remote) {
  const auto path = LocalPath(folder);
  if (!path.has_value()) {
    const auto pages = OpenFolder(folder, remote);
    auto names = pages.ok() ? (*pages)->Next() : pages.status();
    return names.ok() ? *std::move(names) : std::vector<std::string>();
  }
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(
      *path, fs::directory_options::skip_permission_denied, error);
  for (int i = 0; !error && i < kMostSearched && it != fs::end(it); ++i) {
    if (it.depth() > kDepthNamed) it.disable_recursion_pending();
    files.push_back(it->path().native());
    it.increment(error);
  }
  std::ranges::sort(files);
  return files;
}

// Adds to the message that a folder holds no checkpoint which of its folders
// do.
Status WithFoldersBelow(const Status& none, std::string_view folder,
                        const RemoteOptions& remote) {
  std::string root = LocalPath(folder).value_or(std::string(folder));
  while (root.ends_with('/')) root.pop_back();
  root.push_back('/');
  std::vector<std::string> folders;
  bool is_old_megatron = false;
  for (const std::string& name : SomeFilesBelow(folder, remote)) {
    const std::string_view last = LastPart(name);
    is_old_megatron |= last == "model_optim_rng.pt";
    if (!MayBeModel(last) && !IsIndexName(last) && !OpensDirectory(last)) {
      continue;
    }
    std::string below = FolderOf(name);
    if (below.starts_with(root)) below.erase(0, root.size());
    if (folders.empty() || folders.back() != below) folders.push_back(below);
  }
  if (folders.empty()) return none;
  if (is_old_megatron) {
    return Status(Code::kUnsupported,
                  fmt::format("folder holds a file for each process of "
                              "Megatron's older format, which does not say "
                              "which dimension was split: open one of {} by "
                              "itself, or convert them to torch_dist",
                              ListedNames(folders)));
  }
  return Status(none.code(),
                fmt::format("{}; checkpoints are in {}: open one of these",
                            none.message(), ListedNames(folders)));
}

Result<std::vector<std::string>> Find(std::string_view folder,
                                      const RemoteOptions& remote,
                                      std::string_view variant);

// Returns the files in the folder that DeepSpeed's file `latest` names.
Result<std::vector<std::string>> FindLatest(const std::string& latest,
                                            const RemoteOptions& remote) {
  constexpr uint64_t kLongestTag = 4096;
  const auto source =
      OpenSource(latest, {.io = IoMode::kPread, .remote = remote});
  if (!source.ok()) return source.status();
  std::string tag(std::min((*source)->size(), kLongestTag), '\0');
  HAULWAY_TRY((*source)->ReadAt(0, std::as_writable_bytes(std::span(tag))));
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r')) {
    tag.pop_back();
  }
  const bool is_name =
      !tag.empty() && tag != "." && tag != ".." &&
      tag.find_first_of(std::string_view("/\\\0", 3)) == tag.npos;
  if (!is_name) {
    return Status(Code::kCorrupt,
                  fmt::format("the file names {}: expected a folder beside it; "
                              "open the folder of a checkpoint",
                              Quote(tag)))
        .Of(ShownName(latest));
  }
  const std::string folder = FolderOf(latest) + tag + "/";
  auto found = Find(folder, remote, "");
  if (found.ok()) return found;
  return Status(found.status().code(),
                fmt::format("{}; the file 'latest' names this folder",
                            found.status().message()));
}

Result<std::vector<std::string>> Find(std::string_view folder,
                                      const RemoteOptions& remote,
                                      std::string_view variant) {
  HAULWAY_ASSIGN(const std::vector<std::string> files,
                 ListFolder(folder, Depth::kFolder, remote));
  std::vector<std::string> names(files.size());
  std::ranges::transform(files, names.begin(), LastPart);
  auto chosen = ChooseModel(names, variant);
  if (!chosen.ok()) {
    Status status = chosen.status();
    const auto latest = std::ranges::find(names, kLatest);
    if (status.code() == Code::kNotFound && latest != names.end()) {
      return FindLatest(files[latest - names.begin()], remote);
    }
    if (status.code() == Code::kNotFound) {
      status = WithFoldersBelow(status, folder, remote);
    }
    return std::move(status).Of(ShownName(folder));
  }
  // What is left of a set is not a checkpoint, nor is one of its shards. Shards
  // of processes are whole while others wait under hidden names.
  const std::string waiting = std::ranges::all_of(*chosen, IsNamedAsDcpShard)
                                  ? fmt::format("{}/{}", folder, kOpenSet)
                                  : fmt::format("{}/", folder);
  if (std::ranges::any_of(*chosen, IsNamedAsShard) &&
      !FindTemporary(waiting).empty()) {
    return Status(Code::kNotFound,
                  fmt::format("folder {} holds no whole checkpoint: a save "
                              "into it goes on, or did not end: save again",
                              QuotePath(folder)));
  }
  for (std::string& name : *chosen) {
    name = files[std::ranges::find(names, name) - names.begin()];
  }
  return chosen;
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
                                   const RemoteOptions& remote,
                                   std::string_view variant) {
  return OrNoMemory([&]() -> Result<std::string> {
    HAULWAY_ASSIGN(std::vector<std::string> files,
                   Find(folder, remote, variant));
    if (files.size() == 1) return std::move(files.front());
    return Status(Code::kInvalidArgument,
                  fmt::format("the checkpoint is in several files: expected "
                              "one, found {}",
                              ListedNames(files)))
        .Of(ShownName(folder));
  });
}

Result<std::vector<std::string>> FindFiles(std::string_view folder,
                                           const RemoteOptions& remote,
                                           std::string_view variant) {
  return OrNoMemory([&] { return Find(folder, remote, variant); });
}

Result<std::vector<std::string>> ListFiles(std::string_view folder,
                                           const RemoteOptions& remote) {
  return OrNoMemory(
      [&] { return ListFolder(folder, Depth::kRecursive, remote); });
}

bool IsNamedAsShard(std::string_view name) {
  const std::string_view last = LastPart(name);
  return ParsePart(last).has_value() && FormatBySuffix(last) != nullptr &&
         !HasPlace(last);
}

FolderFiles::FolderFiles(RemoteOptions remote) : remote_(std::move(remote)) {}

void FolderFiles::Note(const std::string& name) {
  const std::string_view last = LastPart(name);
  const bool opens = OpensDirectory(last);
  const bool is_left = IsOfUnendedSave(last);
  const bool is_index = IsIndexName(last);
  if (!opens && !is_left && !is_index && FormatBySuffix(last) == nullptr) {
    return;
  }
  Folder& folder = folders_[FolderOf(name)];
  // If both files exist, the one of all ranks counts.
  if (opens && (folder.opened_by.empty() || name < folder.opened_by)) {
    folder.opened_by = name;
  }
  folder.has_data = folder.has_data || is_left;
  if (is_index) unread_.push_back(name);
  if (IsNamedAsDcpShard(last)) {
    ++folder.shards;
  } else if (IsOfProcess(last)) {
    ++folder.ranks;
  } else if (const auto part = ParsePart(last); part && !is_index) {
    std::string& first = folder.sets[part->Set()];
    if (first.empty() || name < first) first = name;
  } else if (opens || is_index || MayBeModel(last)) {
    ++folder.others;
  }
}

bool FolderFiles::IsOne(const Folder& folder) {
  if (folder.opened_by.empty() && folder.has_data) return true;
  if (folder.others != 0) return false;
  if (folder.ranks != 0) return folder.sets.empty() && folder.shards == 0;
  if (folder.shards != 0) return folder.sets.empty();
  // A file of a format that states its place opens the other ones itself.
  return folder.sets.size() == 1 && !HasPlace(folder.sets.begin()->second);
}

std::vector<std::string> FolderFiles::Folders() const {
  std::vector<std::string> folders;
  for (const auto& [name, folder] : folders_) {
    if (IsOne(folder)) folders.push_back(name);
  }
  return folders;
}

bool FolderFiles::IsPart(const std::string& name) const {
  if (IsTemporary(name)) return true;
  const auto found = folders_.find(FolderOf(name));
  if (found == folders_.end()) return false;
  const Folder& folder = found->second;
  const std::string_view last = LastPart(name);
  if (!folder.opened_by.empty()) {
    const bool is_rank = last.starts_with("__") && last.ends_with(".metadata");
    return folder.opened_by != name &&
           (IsOfUnendedSave(last) || last == "meta.pt" || is_rank);
  }
  if (folder.has_data) return IsOfUnendedSave(last);
  if (IsNamedAsDcpShard(last) || IsOfProcess(last)) return IsOne(folder);
  const auto part = ParsePart(last);
  if (!part.has_value()) return false;
  const auto set = folder.sets.find(part->Set());
  if (set == folder.sets.end()) return false;
  return HasPlace(last) ? set->second != name : IsOne(folder);
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
  if (!IsIndex(name) && !OpensDirectory(LastPart(name)) &&
      FormatBySuffix(name) == nullptr) {
    return false;
  }
  return !not_indexes_.contains(name) && !IsPart(name) &&
         !shards_.contains(Beside(name, std::string(LastPart(name))));
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
