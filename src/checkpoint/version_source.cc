// Design: a source knows only its neighbours, and other versions lie in other
// folders. So the index of a model is wrapped when it is opened by a name: the
// name, and the options with which it was opened, lead to the other versions.
// Nothing is read or listed for that until a version asks for its base.
//
// Beside a folder at a URL without a listing, only the name with the base's
// number is tried; where folders can be listed, every index may state the
// version.

#include "checkpoint/version_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/interrupted_update.h"
#include "checkpoint/sharded_index.h"
#include "delta/version_facts.h"
#include "haulway/folder.h"
#include "io/model_names.h"
#include "io/temporary_file.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// A name without its last part, "a/b/", the last part, and a query.
struct SplitName {
  std::string folder;
  std::string last;
  std::string query;
};

SplitName Split(std::string_view name) {
  SplitName split;
  // Only a URL has a query.
  if (name.find("://") != name.npos) {
    const size_t query = std::min(name.find_first_of("?#"), name.size());
    split.query = name.substr(query);
    name = name.substr(0, query);
  }
  const std::string_view last = LastPart(name);
  split.last = last;
  split.folder = name.substr(0, name.size() - last.size());
  return split;
}

// Returns the folder of a file without a slash at the end, and with its
// own name if the path only has "." or "..".
std::string FolderPath(const SplitName& name) {
  std::string folder = name.folder;
  if (folder.ends_with('/')) folder.pop_back();
  const std::string_view last = LastPart(folder);
  const bool is_named = !last.empty() && last != "." && last != "..";
  if (is_named || name.folder.find("://") != name.folder.npos) return folder;
  std::error_code error;
  const auto whole =
      std::filesystem::absolute(folder.empty() ? "." : folder, error);
  std::string normal = error ? folder : whole.lexically_normal().string();
  if (normal.ends_with('/')) normal.pop_back();
  return normal;
}

// Returns the version that the index `source` states; nullopt if it states
// none, or is none.
std::optional<std::string> VersionAt(const ByteSource& source) {
  const ParseLimits limits;
  if (source.size() == 0 || source.size() > limits.max_header_bytes) {
    return std::nullopt;
  }
  const auto json = AllocateBuffer(source.size());
  if (!json.ok() || !source.ReadAt(0, json->mutable_bytes()).ok()) {
    return std::nullopt;
  }
  const auto index =
      ParseShardedIndex(json->bytes(), Strictness::kLenient, limits);
  if (!index.ok()) return std::nullopt;
  return delta::VersionOf(index->metadata);
}

class VersionSource : public ByteSource {
 public:
  VersionSource(SourcePtr index, std::string_view uri, SourceOptions options)
      : index_(std::move(index)), uri_(uri), options_(std::move(options)) {}

  std::string_view name() const override { return index_->name(); }
  uint64_t size() const override { return index_->size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return index_->ReadAt(offset, out);
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override {
    return index_->ReadMany(requests);
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return index_->View(offset, length);
  }
  std::optional<FileBytes> InFile(uint64_t offset,
                                  uint64_t length) const override {
    return index_->InFile(offset, length);
  }
  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return index_->Look(ranges);
  }
  std::optional<RemoteStats> remote_stats() const override {
    return index_->remote_stats();
  }
  Result<SourcePtr> Reopen(IoMode io) const override {
    return Versioned(index_->Reopen(io));
  }
  Result<SourcePtr> Snapshot(std::span<const ByteRange> ranges) const override {
    return Versioned(index_->Snapshot(ranges));
  }
  Status Prefetch(uint64_t offset, uint64_t length) const override {
    return index_->Prefetch(offset, length);
  }
  Status Authenticate(std::span<const ByteRange> ranges) const override {
    return index_->Authenticate(ranges);
  }
  std::shared_ptr<const void> BeginParsing() const override {
    return index_->BeginParsing();
  }
  void DropCache(uint64_t offset, uint64_t length) const override {
    index_->DropCache(offset, length);
  }
  Result<SourcePtr> OpenNeighbour(std::string_view name) const override {
    auto opened = index_->OpenNeighbour(name);
    // The index itself is opened anew when a save replaced it.
    if (name != LastPart(index_->name())) return opened;
    return Versioned(std::move(opened));
  }

  Result<SourcePtr> OpenBase(std::string_view version,
                             std::string_view base) const override {
    // The name of the folder, with which the name of the index ends.
    const bool is_folder = uri_.ends_with('/');
    SplitName name = Split(is_folder ? std::string_view(index_->name()) : uri_);
    if (is_folder) {
      name.folder = Split(uri_).folder;
      name.query = Split(uri_).query;
    }
    if (!name.folder.empty() || LocalPath(uri_).has_value()) {
      HAULWAY_ASSIGN(const std::optional<SourcePtr> beside,
                     FindBeside(name, version, base));
      if (beside.has_value()) return *beside;
    }
    if (!options_.base.empty()) return OpenFirst(version, base);
    return ByteSource::OpenBase(version, base);
  }

 private:
  Result<SourcePtr> Versioned(Result<SourcePtr> opened) const {
    if (!opened.ok()) return opened;
    return MakeVersionSource(*std::move(opened), uri_, options_);
  }

  // Opens version `base` in a folder beside this version's; nullopt if there is
  // none.
  Result<std::optional<SourcePtr>> FindBeside(const SplitName& name,
                                              std::string_view version,
                                              std::string_view base) const {
    const std::string folder = FolderPath(name);
    const std::string_view own = LastPart(folder);
    const std::string parent = folder.substr(0, folder.size() - own.size());
    const bool is_encoded =
        folder.starts_with("http://") || folder.starts_with("https://");
    for (const std::string& other : delta::FoldersOfBase(own, version, base)) {
      // A server would decode "%2f.." to another folder.
      if (is_encoded && other.find_first_of("%?#\\") != other.npos) continue;
      auto opened = OpenIn(parent + other + "/", name.query);
      if (opened.ok()) {
        HAULWAY_TRY(CheckVersion(**opened, base));
        return std::optional(*std::move(opened));
      }
      if (opened.status().code() != Code::kNotFound) return opened.status();
    }
    HAULWAY_ASSIGN(const std::vector<std::string> indexes, IndexesIn(parent));
    for (const std::string& path : indexes) {
      if (path.starts_with(folder + "/")) continue;
      auto opened = OpenSource(path, options_);
      if (!opened.ok()) continue;
      const auto states = VersionAt(**opened);
      if (states.has_value() && delta::IsSameVersion(*states, base)) {
        return std::optional(*std::move(opened));
      }
    }
    return std::optional<SourcePtr>();
  }

  // Opens SourceOptions::base as version `base`.
  Result<SourcePtr> OpenFirst(std::string_view version,
                              std::string_view base) const {
    auto opened = OpenSource(options_.base, options_);
    if (!opened.ok()) {
      return std::move(opened).status().Of(ShownName(options_.base));
    }
    // Version 0, which it mostly is, need not be stated.
    if (delta::CheckBase(version, base, std::nullopt).ok()) return opened;
    HAULWAY_ASSIGN(const auto states, StatedVersion(**opened));
    HAULWAY_TRY(delta::CheckBase(version, base, states));
    return opened;
  }

  // Opens the checkpoint in a folder. Fails with kNotFound if there is none.
  Result<SourcePtr> OpenIn(const std::string& folder,
                           const std::string& query) const {
    const bool is_path = LocalPath(folder).has_value();
    if (is_path && !IsFolder(folder)) {
      return Status(Code::kNotFound, "no such folder").Of(folder);
    }
    SourceOptions options = options_;
    options.variant.clear();
    if (is_path) return OpenSource(folder, options);
    auto index = OpenSource(
        fmt::format("{}{}{}", folder, kVersionIndexName, query), options);
    if (index.ok()) return index;
    // Some servers refuse what is not there, or cannot name it.
    switch (index.status().code()) {
      case Code::kNotFound:
      case Code::kPermissionDenied:
      case Code::kInvalidArgument:
      case Code::kUnsupported:
        return Status(Code::kNotFound, index.status().message());
      default:
        return index;
    }
  }

  // Fails if the checkpoint states that it is another version.
  static Status CheckVersion(const ByteSource& source, std::string_view base) {
    if (!IsIndexName(Split(source.name()).last)) return Status();
    const auto states = VersionAt(source);
    if (!states.has_value() || delta::IsSameVersion(*states, base)) {
      return Status();
    }
    return Status(Code::kMismatch,
                  fmt::format("version {} was expected here: found {}",
                              Quote(base), Quote(*states)))
        .Of(source.name());
  }

  // Returns the indexes in the folders of `parent`, where it can be listed.
  Result<std::vector<std::string>> IndexesIn(const std::string& parent) const {
    std::vector<std::string> found;
    if (const auto path = LocalPath(parent)) {
      std::error_code error;
      const std::string folder = path->empty() ? "." : *path;
      for (std::filesystem::directory_iterator at(folder, error), end;
           !error && at != end; at.increment(error)) {
        const auto index = at->path() / kVersionIndexName;
        std::error_code ignored;
        if (std::filesystem::is_regular_file(index, ignored)) {
          found.push_back(index.string());
        }
      }
    } else if (HasFolders(parent)) {
      HAULWAY_ASSIGN(found,
                     ListFolder(parent, Depth::kRecursive, options_.remote));
      std::erase_if(found, [&](const std::string& file) {
        const SplitName name = Split(file);
        const auto within =
            std::string_view(name.folder)
                .substr(std::min(parent.size(), name.folder.size()));
        return name.last != kVersionIndexName || within.empty() ||
               within.find('/') != within.size() - 1;
      });
    }
    std::ranges::sort(found);
    return found;
  }

  const SourcePtr index_;
  const std::string uri_;
  const SourceOptions options_;
};

}  // namespace

Result<std::optional<std::string>> StatedVersion(const ByteSource& source) {
  const SplitName name = Split(source.name());
  if (LocalPath(source.name()).has_value()) {
    HAULWAY_ASSIGN(auto marked,
                   ReadSyncMarker(FolderOfPath(std::string(source.name()))));
    if (marked.has_value()) return marked;
  }
  if (IsIndexName(name.last)) {
    auto states = VersionAt(source);
    if (states.has_value()) return states;
  }
  const std::string_view digits =
      delta::DigitsOfFolder(LastPart(FolderPath(name)));
  if (digits.empty()) return std::optional<std::string>();
  return std::optional<std::string>(digits);
}

SourcePtr MakeVersionSource(SourcePtr index, std::string_view uri,
                            const SourceOptions& options) {
  return std::make_shared<const VersionSource>(std::move(index), uri, options);
}

}  // namespace haulway
