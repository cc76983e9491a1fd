#include "runs/run_folder.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checkpoint/folder.h"
#include "haulway/folder.h"

namespace haulway {

namespace {

// Returns the range of sorted names that begin with `prefix`.
std::span<const RunFile> WithPrefix(std::span<const RunFile> files,
                                    std::string_view prefix) {
  const auto first =
      std::ranges::lower_bound(files, prefix, {}, &RunFile::name);
  const auto end = std::ranges::partition_point(
      std::span(first, files.end()),
      [&](const RunFile& file) { return file.name.starts_with(prefix); });
  return {first, end};
}

}  // namespace

Status RunFolder::ListLocal(const std::string& below, bool into_links) {
  const std::string path = root_ + below;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()),
                                                   &::closedir);
  if (folder == nullptr) {
    // It is not there, or was removed since its name was read.
    if (errno == ENOENT || (errno == ENOTDIR && !below.empty())) {
      return Status();
    }
    return Status::FromErrno(errno, "cannot list the run").Of(path);
  }
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view last(entry->d_name);
    if (last == "." || last == "..") continue;
    RunFile file{.name = below + std::string(last)};
    const std::string full = root_ + file.name;
    struct stat facts;
    if (::lstat(full.c_str(), &facts) != 0) continue;
    file.is_link = S_ISLNK(facts.st_mode);
    if (file.is_link && ::stat(full.c_str(), &facts) != 0) {
      facts.st_mode = 0;
    }
    file.is_folder = S_ISDIR(facts.st_mode);
    file.inode = facts.st_ino;
    if (S_ISREG(facts.st_mode)) {
      file.bytes = static_cast<uint64_t>(facts.st_size);
    } else {
      file.is_other = !file.is_folder;
    }
    const bool is_hidden = below.empty() && last.starts_with('.');
    const bool goes_in =
        file.is_folder && !is_hidden && (!file.is_link || into_links);
    const std::string inner = file.name + '/';
    files_.push_back(std::move(file));
    if (goes_in) HAULWAY_TRY(ListLocal(inner, false));
    errno = 0;
  }
  // A folder that was removed meanwhile.
  if (errno == 0 || errno == ENOENT) return Status();
  return Status::FromErrno(errno, "cannot list the run").Of(path);
}

Result<RunFolder> RunFolder::List(std::string_view uri,
                                  const RemoteOptions& remote) {
  RunFolder run;
  run.remote_ = remote;
  const std::optional<std::string> path = LocalPath(uri);
  run.is_local_ = path.has_value();
  run.root_ = run.is_local_ ? (path->empty() ? "." : *path) : std::string(uri);
  if (!run.root_.ends_with('/')) run.root_ += '/';
  if (run.is_local_) {
    HAULWAY_TRY(run.ListLocal("", true));
  } else {
    HAULWAY_ASSIGN(std::vector<ListedFile> files, ListSizes(run.root_, remote));
    for (ListedFile& file : files) {
      run.files_.push_back(
          {.name = file.name.substr(run.root_.size()), .bytes = file.bytes});
    }
  }
  std::ranges::sort(run.files_, {}, &RunFile::name);
  return run;
}

RunFolder RunFolder::Of(std::string root, std::vector<RunFile> files,
                        OpenFile open) {
  RunFolder run;
  run.is_local_ = false;
  run.root_ = std::move(root);
  run.open_ = std::move(open);
  run.files_ = std::move(files);
  std::ranges::sort(run.files_, {}, &RunFile::name);
  return run;
}

std::span<const RunFile> RunFolder::Below(std::string_view folder) const {
  return WithPrefix(files_, fmt::format("{}/", folder));
}

const RunFile* RunFolder::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(files_, name, {}, &RunFile::name);
  return found == files_.end() || found->name != name ? nullptr : &*found;
}

bool RunFolder::IsFolder(std::string_view name) const {
  const RunFile* const file = Find(name);
  return file != nullptr ? file->is_folder : !Below(name).empty();
}

std::vector<std::string> RunFolder::Children(std::string_view folder) const {
  const std::span<const RunFile> files =
      folder.empty() ? this->files() : Below(folder);
  const size_t start = folder.empty() ? 0 : folder.size() + 1;
  std::vector<std::string> names;
  for (const RunFile& file : files) {
    const std::string_view name =
        std::string_view(file.name).substr(0, file.name.find('/', start));
    if (names.empty() || names.back() != name) names.emplace_back(name);
  }
  // "a", "a-b", "a/x": names with the same first part are not neighbours.
  std::ranges::sort(names);
  const auto twice = std::ranges::unique(names);
  names.erase(twice.begin(), twice.end());
  return names;
}

std::string RunFolder::PathOf(std::string_view name) const {
  return fmt::format("{}{}{}", root_, name,
                     !is_local_ && IsFolder(name) ? "/" : "");
}

Result<std::shared_ptr<const ByteSource>> RunFolder::Open(
    std::string_view name) const {
  if (open_ != nullptr) return open_(name);
  SourceOptions options;
  options.io = IoMode::kPread;
  options.remote = remote_;
  return OpenSource(fmt::format("{}{}", root_, name), options);
}

Result<std::string> RunFolder::Read(std::string_view name,
                                    uint64_t most) const {
  HAULWAY_ASSIGN(const auto source, Open(name));
  if (source->size() > most) {
    return Status(Code::kLimit, fmt::format("{} has {} bytes: expected at "
                                            "most {}",
                                            Quote(name), source->size(), most));
  }
  std::string text(source->size(), '\0');
  HAULWAY_TRY(source->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace haulway
