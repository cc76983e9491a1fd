// Design: the folders below the root are listed once; a folder with the index
// of a version, or with the name of one, is a version. What each holds is read
// from its index and the headers of its shards.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

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

namespace haulway {

namespace {

// Versions are read in turn by this many threads where requests take long.
constexpr int kThreadsOfServers = 8;

// Returns the digits with which a folder of a version ends: "000004" for
// "weight_v000004", "4" for "v4"; empty for any other name.
std::string_view DigitsOf(std::string_view folder) {
  for (const std::string_view stem : {"weight_v", "v"}) {
    if (!folder.starts_with(stem)) continue;
    const std::string_view digits = folder.substr(stem.size());
    const bool is_number =
        !digits.empty() && std::ranges::all_of(digits, [](char c) {
          return c >= '0' && c <= '9';
        });
    if (is_number) return digits;
  }
  return {};
}

uint64_t NumberFrom(std::string_view digits) {
  uint64_t number = 0;
  for (const char c : digits) {
    if (number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

// Sets what the folder's name says, where the index says nothing.
void SetNames(std::string_view folder, const std::optional<std::string>& states,
              WeightVersion* version) {
  const std::string_view digits = DigitsOf(folder);
  if (states.has_value()) {
    version->id = *states;
  } else if (folder.starts_with('v') && !digits.empty()) {
    version->id = folder;
  } else {
    version->id = digits;
  }
  const std::string_view number = delta::NumberOf(version->id);
  version->number = NumberFrom(number.empty() ? digits : number);
}

// Returns whether a shard is as long as its header says, and adds its size.
bool IsWhole(const ByteSource& index, const std::string& file,
             uint64_t* bytes) {
  if (file.find('/') != file.npos) return false;
  const auto source = index.OpenNeighbour(file);
  if (!source.ok()) return false;
  *bytes += (*source)->size();
  return safetensors::OpenSafetensors(*source, {}).ok();
}

// Reads the index of a version and the headers of its shards.
Status Describe(const VersionFolder& folder, const SourceOptions& options,
                WeightVersion* version) {
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
    if (!IsWhole(**source, file, &version->bytes)) {
      version->missing.push_back(file);
    }
  }
  version->complete = version->missing.empty();
  return Status();
}

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
  if (!is_index && !(is_shard && !DigitsOf(folder).empty())) return;
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
    if (!at->is_directory(ignored)) continue;
    const std::string name = at->path().filename().string();
    if (name == "updates") {
      HAULWAY_TRY(ListLocal(root, at->path().string(), folders));
      continue;
    }
    const std::string within =
        path == root ? name : fmt::format("updates/{}", name);
    for (fs::directory_iterator file(at->path(), ignored);
         !ignored && file != end; file.increment(ignored)) {
      AddFile(root + "/",
              fmt::format("{}/{}/{}", root, within,
                          file->path().filename().string()),
              folders);
    }
  }
  return Status();
}

}  // namespace

Result<std::vector<VersionFolder>> FindVersionFolders(
    std::string_view uri, const RemoteOptions& remote) {
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
  }
  std::vector<VersionFolder> found;
  for (auto& [name, folder] : folders) found.push_back(std::move(folder));
  return found;
}

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
      return Describe(folders[i], options, &versions[i]);
    }));
    // Any other checkpoint neither states a version nor is named as one.
    std::erase_if(versions, [](const WeightVersion& version) {
      return version.id.empty();
    });
    std::ranges::stable_sort(versions, {}, &WeightVersion::number);
    return versions;
  });
}

}  // namespace haulway
