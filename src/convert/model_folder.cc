#include "convert/model_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "convert/shards.h"
#include "dcp/dcp_writer.h"
#include "haulway/folder.h"
#include "io/file_system.h"

namespace haulway::convert {

namespace {

using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> IdOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino};
}

std::string WithSlash(std::string folder) {
  if (!folder.ends_with('/')) folder += '/';
  return folder;
}

// Returns whether `text` has the form "-00001-of-00003".
bool IsShardNumber(std::string_view text) {
  const auto digits = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (i >= text.size() || text[i] < '0' || text[i] > '9') return false;
    }
    text.remove_prefix(count);
    return true;
  };
  const auto word = [&](std::string_view expected) {
    if (!text.starts_with(expected)) return false;
    text.remove_prefix(expected.size());
    return true;
  };
  return word("-") && digits(5) && word("-of-") && digits(5) && text.empty();
}

}  // namespace

bool IsFolder(const std::string& path) {
  return haulway::IsFolder(path) || (path.ends_with('/') && HasFolders(path));
}

ModelFolder::ModelFolder(std::string folder, Format format,
                         Durability durability)
    : folder_(WithSlash(std::move(folder))),
      durability_(durability),
      is_directory_(format == Format::kTorchDcp),
      stem_(format == Format::kTorch ? "pytorch_model" : "model"),
      ending_(format == Format::kTorch ? ".bin"
              : is_directory_          ? ""
                                       : EntryOf(format).suffixes.front()),
      path_(is_directory_ ? folder_ : folder_ + stem_ + ending_) {}

bool ModelFolder::IsOurs(std::string_view name) const {
  if (is_directory_) return dcp::IsOfDirectory(name);
  if (!name.starts_with(stem_)) return false;
  name.remove_prefix(stem_.size());
  if (name == ending_ || name == IndexPath(ending_)) return true;
  if (!name.ends_with(ending_)) return false;
  name.remove_suffix(ending_.size());
  return IsShardNumber(name);
}

std::vector<std::string> ModelFolder::Found() const {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder_, error), end;
       !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (IsOurs(name) && !at->is_directory(ignored)) {
      found.push_back(folder_ + name);
    }
  }
  std::ranges::sort(found);
  return found;
}

Status ModelFolder::CheckSource(const Checkpoint& from) const {
  const std::string source(from.source().name());
  std::set<FileId> files;
  const auto add = [&](const std::string& path) {
    if (const auto id = IdOf(path)) files.insert(*id);
  };
  add(source);
  const std::string beside = source.substr(0, source.find_last_of('/') + 1);
  for (const Part& part : from.index().parts) {
    add(std::string(part.name));
    add(beside + std::string(part.name));
  }
  for (const std::string& path : Found()) {
    const auto id = IdOf(path);
    if (!id.has_value() || !files.contains(*id)) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is a file of the checkpoint that is "
                              "converted: expected another folder",
                              QuotePath(path)));
  }
  return Status();
}

bool ModelFolder::IsFolderOf(const Checkpoint& from) const {
  if (from.opened() == nullptr) return false;
  const std::string name(from.opened()->name());
  std::string folder = haulway::IsFolder(name)
                           ? name
                           : name.substr(0, name.find_last_of('/') + 1);
  if (folder.empty()) folder = ".";
  const auto own = IdOf(folder_);
  return own.has_value() ? own == IdOf(folder) : WithSlash(folder) == folder_;
}

ModelFolder::~ModelFolder() {
  // A folder with a file in it stays.
  for (const std::filesystem::path& folder : made_) ::rmdir(folder.c_str());
}

Status ModelFolder::Make() {
  if (!LocalPath(folder_).has_value()) return Status();
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(folder_, error);
  if (!folder.has_filename()) folder = folder.parent_path();
  while (!error && !std::filesystem::exists(folder, error) &&
         folder.has_relative_path()) {
    made_.push_back(folder);
    folder = folder.parent_path();
  }
  error.clear();
  std::filesystem::create_directories(folder_, error);
  if (error) {
    return Status::FromErrno(error.value(), "cannot create the folder")
        .Of(folder_);
  }
  for (const std::filesystem::path& made : made_) {
    HAULWAY_TRY(Sync(made.parent_path().string()));
  }
  return Status();
}

Status ModelFolder::Sync(const std::string& folder) const {
  if (durability_ == Durability::kNone) return Status();
  return SyncFolder(folder);
}

std::vector<std::string> ModelFolder::Others(
    const std::vector<std::string>& written) const {
  std::vector<std::string> others = Found();
  std::erase_if(others, [&](const std::string& path) {
    return std::ranges::find(written, path) != written.end();
  });
  // "model.safetensors.index.json" and "model.safetensors" open the shards and
  // themselves. They sort behind "model-00001-of-00002.safetensors".
  std::ranges::reverse(others);
  return others;
}

}  // namespace haulway::convert
