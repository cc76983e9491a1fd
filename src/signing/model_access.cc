#include "signing/model_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "signing/statement.h"

namespace haulway::signing {

namespace {

namespace fs = std::filesystem;

Status FromError(const std::error_code& error, const fs::path& path) {
  return Status::FromErrno(
      error.value(), fmt::format("cannot look at {}", Quote(path.native())));
}

// Returns the path from `root` to `path`, made absolute, without following
// links.
std::optional<std::string> PathWithin(const std::string& root,
                                      const std::string& path) {
  std::error_code error;
  const fs::path from = fs::absolute(root, error).lexically_normal();
  const fs::path to = fs::absolute(path, error).lexically_normal();
  std::string base = from.native();
  while (base.size() > 1 && base.ends_with('/')) base.pop_back();
  std::string full = to.native();
  while (full.size() > 1 && full.ends_with('/')) full.pop_back();
  if (full == base) return std::string(kOneFile);
  if (base != "/") base += '/';
  if (!full.starts_with(base)) return std::nullopt;
  return full.substr(base.size());
}

class LocalModel : public ModelAccess {
 public:
  LocalModel(std::string path, bool is_file)
      : path_(std::move(path)), is_file_(is_file) {}

  bool is_file() const override { return is_file_; }

  Result<std::optional<std::vector<ModelEntry>>> List(
      const IgnoredPaths& ignored) const override {
    std::vector<ModelEntry> entries;
    if (is_file_) {
      std::error_code error;
      const uint64_t bytes = fs::file_size(path_, error);
      if (error) return FromError(error, path_);
      entries.push_back(
          {std::string(kOneFile), ModelEntry::Kind::kFile, bytes});
      return std::optional(std::move(entries));
    }
    HAULWAY_TRY(ListFolder(path_, "", ignored, &entries));
    return std::optional(std::move(entries));
  }

  Result<std::shared_ptr<const ByteSource>> Open(
      std::string_view name) const override {
    if (is_file_) return OpenFileSource(path_);
    return OpenFileSource(fmt::format("{}/{}", path_, name));
  }

  std::optional<std::string> NameOf(std::string_view uri) const override {
    const auto within = NameWithin(path_, std::string(uri));
    if (!is_file_) return within;
    if (within != kOneFile) return std::nullopt;
    return std::string(kOneFile);
  }

 private:
  static Status ListFolder(const fs::path& folder, const std::string& prefix,
                           const IgnoredPaths& ignored,
                           std::vector<ModelEntry>* entries) {
    std::error_code error;
    fs::directory_iterator at(folder, error);
    if (error) return FromError(error, folder);
    for (const fs::directory_iterator end; at != end; at.increment(error)) {
      const fs::path& path = at->path();
      std::string name = prefix + path.filename().native();
      if (ignored.Has(name)) continue;
      const fs::file_status status = fs::symlink_status(path, error);
      if (error) return FromError(error, path);
      if (fs::is_directory(status)) {
        HAULWAY_TRY(ListFolder(path, name + "/", ignored, entries));
        continue;
      }
      if (entries->size() == kMostResources) {
        return Status(
            Code::kLimit,
            fmt::format("the model has more than {} files", kMostResources));
      }
      HAULWAY_ASSIGN(ModelEntry entry, EntryOf(path, status));
      entry.name = std::move(name);
      entries->push_back(std::move(entry));
    }
    if (error) return FromError(error, folder);
    return Status();
  }

  static Result<ModelEntry> EntryOf(const fs::path& path,
                                    fs::file_status status) {
    ModelEntry entry;
    std::error_code error;
    if (fs::is_symlink(status)) {
      entry.kind = ModelEntry::Kind::kLink;
      status = fs::status(path, error);
      if (!fs::exists(status)) {
        entry.kind = ModelEntry::Kind::kBrokenLink;
        return entry;
      }
      if (fs::is_directory(status)) {
        entry.kind = ModelEntry::Kind::kLinkToFolder;
        return entry;
      }
    }
    if (!fs::is_regular_file(status)) {
      entry.kind = ModelEntry::Kind::kSpecial;
      return entry;
    }
    entry.bytes = fs::file_size(path, error);
    if (error) return FromError(error, path);
    return entry;
  }

  const std::string path_;
  const bool is_file_;
};

}  // namespace

void IgnoredPaths::Add(std::string_view path) {
  std::string clean = fs::path(path).lexically_normal().generic_string();
  while (clean.size() > 1 && clean.ends_with('/')) clean.pop_back();
  if (clean.empty() || clean == ".." || clean.starts_with("../") ||
      clean.starts_with('/')) {
    return;
  }
  paths_.insert(std::move(clean));
}

bool IgnoredPaths::Has(std::string_view name) const {
  if (paths_.empty()) return false;
  if (paths_.contains(kOneFile)) return true;
  for (size_t at = 0; at != name.npos;) {
    at = name.find('/', at + 1);
    if (paths_.contains(name.substr(0, at))) return true;
  }
  return false;
}

void AddIgnored(const ModelAccess& access, std::string_view path,
                IgnoredPaths* ignored) {
  if (!path.starts_with('/')) return ignored->Add(path);
  if (const auto name = access.NameOf(path)) ignored->Add(*name);
}

Result<std::unique_ptr<ModelAccess>> AccessLocalModel(std::string path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return Status::FromErrno(error ? error.value() : ENOENT,
                             fmt::format("cannot open {}", Quote(path)));
  }
  const bool is_file = !fs::is_directory(status);
  if (is_file && !fs::is_regular_file(status)) {
    return Status(Code::kUnsupported, "it is neither a file nor a folder")
        .Of(path);
  }
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return std::unique_ptr<ModelAccess>(
      std::make_unique<LocalModel>(std::move(path), is_file));
}

std::optional<std::string> NameWithin(const std::string& root,
                                      const std::string& path) {
  // Both may be reached through links, the path's last part excepted.
  std::error_code error;
  const fs::path full = fs::absolute(path, error).lexically_normal();
  fs::path last = full.filename();
  fs::path folder = full.parent_path();
  if (last.empty()) {
    last = folder.filename();
    folder = folder.parent_path();
  }
  const fs::path real = fs::weakly_canonical(folder, error) / last;
  const fs::path real_root = fs::weakly_canonical(root, error);
  auto found = PathWithin(root, full.native());
  if (!found.has_value()) found = PathWithin(real_root.native(), real.native());
  return found;
}

}  // namespace haulway::signing
