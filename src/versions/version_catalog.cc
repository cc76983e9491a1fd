#include "versions/version_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "io/model_names.h"

namespace haulway {

namespace {

// Returns the digits at the end of a folder's name, without leading zeros.
std::string NumberAtEnd(std::string_view name) {
  size_t begin = name.size();
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  return std::string(delta::NumberOf(name.substr(begin)));
}

bool IsGreater(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() > b.size() : a > b;
}

// Returns why a version cannot be used.
Status Incomplete(const WeightVersion& version, const SourceOptions& options) {
  HAULWAY_TRY(CheckFiles(version, options));
  return Status(Code::kNotFound,
                fmt::format("version {} is not complete: it lacks {}",
                            Quote(version.id), Quote(version.missing.front())))
      .Of(ShownName(version.path));
}

}  // namespace

Status CheckFiles(const WeightVersion& version, const SourceOptions& options) {
  const auto open = [&]() -> Status {
    HAULWAY_ASSIGN(
        const auto source,
        OpenSource(fmt::format("{}/{}", version.path, kVersionIndexName),
                   options));
    HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
    if (delta::IsDelta(index.metadata)) {
      return OpenDelta(*source, index, {}).status();
    }
    return OpenFilesOf(*source, index, {}).status();
  };
  Status status = open();
  if (status.ok()) return status;
  return std::move(status).Of(ShownName(version.path));
}

bool IsVersionNamed(std::string_view id, std::string_view name) {
  if (id == name || delta::IsSameVersion(id, name)) return true;
  // A number means "v4" too.
  const std::string_view number = delta::NumberOf(name);
  return !number.empty() && !name.starts_with('v') &&
         number == delta::NumberOf(id);
}

Result<VersionCatalog> VersionCatalog::Open(std::string_view uri,
                                            const SourceOptions& options) {
  VersionCatalog catalog;
  catalog.options_ = options;
  catalog.options_.io = IoMode::kPread;
  HAULWAY_ASSIGN(std::vector<VersionFolder> folders,
                 FindVersionFolders(uri, options.remote));
  for (VersionFolder& folder : folders) {
    std::string number = NumberAtEnd(LastPart(folder.path));
    catalog.rows_.push_back({std::move(folder), std::move(number)});
  }
  std::ranges::stable_sort(catalog.rows_, IsGreater, &Row::number);
  return catalog;
}

Result<const WeightVersion*> VersionCatalog::Read(Row* row) {
  if (!row->version.has_value()) {
    HAULWAY_TRY(
        DescribeVersion(row->folder, options_, &row->version.emplace()));
  }
  return &*row->version;
}

Result<const WeightVersion*> VersionCatalog::Find(std::string_view name) {
  const WeightVersion* incomplete = nullptr;
  const std::string_view number = delta::NumberOf(name);
  // Folders of that number first; ids need not be in the names of folders.
  for (const bool is_likely : {true, false}) {
    const WeightVersion* whole = nullptr;
    for (Row& row : rows_) {
      if ((row.number == number) != is_likely) continue;
      HAULWAY_ASSIGN(const WeightVersion* version, Read(&row));
      if (version->id.empty() || !IsVersionNamed(version->id, name)) continue;
      if (whole != nullptr) HAULWAY_TRY(CheckHeldOnce(*whole, *version));
      (version->complete ? whole : incomplete) = version;
    }
    if (whole != nullptr) return whole;
  }
  return incomplete;
}

Result<const WeightVersion*> VersionCatalog::Newest() {
  const Row* newest = nullptr;
  for (Row& row : rows_) {
    if (newest != nullptr && row.number != newest->number) break;
    HAULWAY_ASSIGN(const WeightVersion* version, Read(&row));
    if (version->id.empty() || !version->complete) continue;
    if (newest != nullptr)
      HAULWAY_TRY(CheckHeldOnce(*newest->version, *version));
    if (newest == nullptr) newest = &row;
  }
  return newest == nullptr ? nullptr : &*newest->version;
}

Result<std::vector<WeightVersion>> FindChain(VersionCatalog* catalog,
                                             std::string_view from,
                                             const WeightVersion& to) {
  std::vector<WeightVersion> chain;
  std::set<std::string> seen;
  const WeightVersion* at = &to;
  while (at != nullptr && !IsVersionNamed(at->id, from)) {
    if (!at->complete) return Incomplete(*at, catalog->options());
    if (!seen.insert(at->path).second) {
      return Status(Code::kCorrupt,
                    fmt::format("the versions build on one another in a "
                                "circle: version {} comes twice",
                                Quote(at->id)))
          .Of(ShownName(at->path));
    }
    chain.push_back(*at);
    if (at->kind == "full" || IsVersionNamed(at->base, from)) break;
    HAULWAY_ASSIGN(at, catalog->Find(at->base));
  }
  std::ranges::reverse(chain);
  return chain;
}

}  // namespace haulway
