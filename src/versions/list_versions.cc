// Design: the folders below the root are listed once; a folder with the name of
// a version, and its index or a shard, is a version. What each holds is read
// from its index and the headers of its shards. Copies under other names, and
// links to versions of the same folder, are none: they would be the version
// twice. What still is there twice is refused. Tried before: the first folder
// counts; callers that look in another order then took another one.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/is_of_source.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/folder.h"
#include "checkpoint/sharded_index.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "haulway/delta.h"
#include "haulway/folder.h"
#include "io/model_names.h"
#include "safetensors/safetensors_reader.h"
#include "versions/version_folders.h"
#include "versions/version_names.h"

namespace haulway {

namespace {

// Versions are read in turn by this many threads where requests take long.
constexpr int kThreadsOfServers = 8;

// Sets what the folder's name says, where the index says nothing.
void SetNames(std::string_view folder, const std::optional<std::string>& states,
              WeightVersion* version) {
  const std::string_view digits = delta::DigitsOfFolder(folder);
  if (states.has_value()) {
    version->id = *states;
  } else if (folder.starts_with('v') && !digits.empty()) {
    version->id = folder;
  } else {
    version->id = digits;
  }
  version->number = VersionNumber(version->id, folder);
}

// Returns whether a folder of this name may hold the version `id`: its name has
// a number, as those of trainers, or is the id.
bool IsFolderOfVersion(std::string_view folder, std::string_view id) {
  return !delta::DigitsOfFolder(folder).empty() || folder == id;
}

// Returns whether a shard is as long as its header says, and adds its size.
// Fails if it cannot be read.
Result<bool> IsWhole(const ByteSource& index, const std::string& file,
                     uint64_t* bytes) {
  if (file.find('/') != file.npos) return false;
  const auto source = index.OpenNeighbour(file);
  Status status = source.status();
  if (source.ok()) {
    *bytes += (*source)->size();
    status = safetensors::OpenSafetensors(*source, {}).status();
  }
  if (IsOfSource(status) && status.code() != Code::kNotFound) return status;
  return status.ok();
}

}  // namespace

Status DescribeVersion(const VersionFolder& folder,
                       const SourceOptions& options, WeightVersion* version) {
  version->path = folder.path;
  const std::string_view name = LastPart(folder.path);
  SetNames(name, std::nullopt, version);
  if (!folder.has_index) {
    version->missing.emplace_back(kVersionIndexName);
    return Status();
  }
  auto source =
      OpenSource(fmt::format("{}/{}", folder.path, kVersionIndexName), options);
  if (!source.ok()) {
    if (source.status().code() != Code::kNotFound) return source.status();
    version->missing.emplace_back(kVersionIndexName);
    return Status();
  }
  const auto index = ReadShardedIndex(**source, {});
  if (!index.ok() || !index->weight_map.has_value()) {
    version->missing.emplace_back(kVersionIndexName);
    return Status();
  }
  SetNames(name, delta::VersionOf(index->metadata), version);
  if (!IsFolderOfVersion(name, version->id)) {
    version->id.clear();
    return Status();
  }
  version->tensors = index->weight_map->size();
  bool is_valid = true;
  if (delta::IsDelta(index->metadata)) {
    const auto facts = delta::ReadVersionFacts(index->metadata, name);
    is_valid = facts.ok();
    if (facts.ok()) {
      version->base = facts->base;
      version->encoding = Name(facts->change);
      version->checksum = Name(facts->checksum);
    }
  } else {
    version->kind = "full";
  }
  if (!is_valid) version->missing.emplace_back(kVersionIndexName);
  for (const std::string& file : index->files) {
    HAULWAY_ASSIGN(const bool is_whole,
                   IsWhole(**source, file, &version->bytes));
    if (!is_whole) version->missing.push_back(file);
  }
  version->complete = version->missing.empty();
  return Status();
}

Status CheckHeldOnce(const WeightVersion& one, const WeightVersion& other) {
  if (!one.complete || !other.complete ||
      !delta::IsSameVersion(one.id, other.id)) {
    return Status();
  }
  return Status(Code::kMismatch,
                fmt::format("version {} is also in {}: remove one of the two "
                            "folders",
                            Quote(other.id), ShownName(one.path)))
      .Of(ShownName(other.path));
}

bool IsLinkWithin(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_symlink(error)) return false;
  namespace fs = std::filesystem;
  const fs::path own = fs::canonical(entry.path().parent_path(), error);
  const fs::path target = fs::canonical(entry.path(), error);
  return !error && target.parent_path() == own &&
         !delta::DigitsOfFolder(target.filename().string()).empty();
}

namespace {

// Adds a file of a version to the folders that were found.
void AddFile(const std::string& root, std::string_view file,
             std::map<std::string, VersionFolder>* folders) {
  if (!file.starts_with(root)) return;
  std::string_view within = file.substr(root.size());
  constexpr std::string_view kUpdates = "updates/";
  std::string parent = root;
  if (within.starts_with(kUpdates)) {
    parent += kUpdates;
    within.remove_prefix(kUpdates.size());
  }
  const size_t slash = within.find('/');
  if (slash == within.npos || slash == 0 || within.front() == '.') return;
  const std::string_view folder = within.substr(0, slash);
  const std::string_view name = within.substr(slash + 1);
  const bool is_index = name == kVersionIndexName;
  const bool is_shard = name.ends_with(".safetensors") &&
                        name.find('/') == name.npos && !name.starts_with('.');
  if (!is_index && !(is_shard && !delta::DigitsOfFolder(folder).empty()))
    return;
  VersionFolder& found = (*folders)[fmt::format("{}{}", parent, folder)];
  found.path = fmt::format("{}{}", parent, folder);
  found.has_index |= is_index;
}

// Lists the files in the folders of a local folder.
Status ListLocal(const std::string& root, const std::string& path,
                 std::map<std::string, VersionFolder>* folders) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::directory_iterator at(path, error);
  if (error) {
    return Status::FromErrno(error.value(), "cannot list the versions")
        .Of(path);
  }
  for (const fs::directory_iterator end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (!at->is_directory(ignored) || IsLinkWithin(*at)) continue;
    const std::string name = at->path().filename().string();
    if (name == "updates") {
      HAULWAY_TRY(ListLocal(root, at->path().string(), folders));
      continue;
    }
    const std::string within =
        path == root ? name : fmt::format("updates/{}", name);
    fs::directory_iterator file(at->path(), ignored);
    for (; !ignored && file != end; file.increment(ignored)) {
      AddFile(root + "/",
              fmt::format("{}/{}/{}", root, within,
                          file->path().filename().string()),
              folders);
    }
    // It may have been removed meanwhile.
    if (ignored && ignored != std::errc::no_such_file_or_directory &&
        !delta::DigitsOfFolder(name).empty()) {
      return Status::FromErrno(ignored.value(), "cannot list the version")
          .Of(at->path().string());
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<VersionFolder>> FindVersionFolders(
    std::string_view uri, const RemoteOptions& remote, bool* has_latest) {
  std::map<std::string, VersionFolder> folders;
  if (const auto path = LocalPath(uri)) {
    std::string root = path->empty() ? "." : *path;
    while (root.size() > 1 && root.ends_with('/')) root.pop_back();
    HAULWAY_TRY(ListLocal(root, root, &folders));
  } else {
    std::string root(uri);
    if (!root.ends_with('/')) root += '/';
    HAULWAY_ASSIGN(const std::vector<std::string> files,
                   ListFolder(root, Depth::kRecursive, remote));
    for (const std::string& file : files) AddFile(root, file, &folders);
    if (has_latest != nullptr) {
      *has_latest = std::ranges::binary_search(files, root + "latest");
    }
  }
  std::vector<VersionFolder> found;
  for (auto& [name, folder] : folders) found.push_back(std::move(folder));
  return found;
}

namespace {

Status CheckHeldOnce(const std::vector<WeightVersion>& versions) {
  // By how versions are compared: without zeros in front.
  std::map<std::string, const WeightVersion*> whole;
  for (const WeightVersion& version : versions) {
    if (!version.complete) continue;
    const std::string_view number = delta::NumberOf(version.id);
    const bool has_v = version.id.starts_with('v');
    const auto [at, is_new] = whole.emplace(
        number.empty() ? version.id
                       : fmt::format("{}{}", has_v ? "v" : "", number),
        &version);
    if (!is_new) HAULWAY_TRY(CheckHeldOnce(*at->second, version));
  }
  return Status();
}

}  // namespace

Result<std::vector<WeightVersion>> ListVersions(std::string_view uri,
                                                const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<WeightVersion>> {
    HAULWAY_ASSIGN(const std::vector<VersionFolder> folders,
                   FindVersionFolders(uri, remote));
    std::vector<WeightVersion> versions(folders.size());
    SourceOptions options;
    options.io = IoMode::kPread;
    options.remote = remote;
    const int threads = LocalPath(uri).has_value() ? 1 : kThreadsOfServers;
    HAULWAY_TRY(ParallelFor(folders.size(), threads, [&](uint64_t i) {
      return DescribeVersion(folders[i], options, &versions[i]);
    }));
    // Any other checkpoint neither states a version nor is named as one.
    std::erase_if(versions, [](const WeightVersion& version) {
      return version.id.empty();
    });
    std::ranges::stable_sort(versions, {}, &WeightVersion::number);
    HAULWAY_TRY(CheckHeldOnce(versions));
    return versions;
  });
}

}  // namespace haulway
