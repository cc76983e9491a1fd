// Design: a target is locked with flock on a file that SGLang's receiver locks,
// too, so that either may change it. Everything of ours lies in a hidden folder
// beside that file, and gets its name by a rename when it is whole. A file that
// states the version, written the same way, is the only thing that makes an
// update count. Where the target must survive a loss of power, each step is
// synced before the next one.

#include "versions/target_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/interrupted_update.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_source.h"
#include "haulway/source.h"
#include "io/file_system.h"
#include "safetensors/safetensors_reader.h"
#include "versions/change_journal.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

constexpr int kAgainMs = 5;

Status Failed(int error, std::string_view what, const std::string& path) {
  return Status::FromErrno(error, what).Of(path);
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return Status();
  return Failed(error.value(), "cannot make the folder", path);
}

Status WriteWhole(const std::string& path, std::string_view text,
                  Durability durability) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) return Failed(errno, "cannot make the file", path);
  const auto bytes = std::as_bytes(std::span(text));
  HAULWAY_TRY(WriteFully(fd.get(), 0, {&bytes, 1}));
  const bool is_synced =
      durability == Durability::kNone ||
      RetryInterrupted([&] { return ::fsync(fd.get()); }) == 0;
  return is_synced ? Status() : Failed(errno, "cannot sync", path);
}

Status SyncIf(Durability durability, const std::string& folder) {
  return durability == Durability::kNone ? Status() : SyncFolder(folder);
}

// Returns the safetensors files of an index, or all of the folder.
Result<std::vector<std::string>> WeightFiles(const TargetFolder& target) {
  const std::string index = target.In(kVersionIndexName);
  std::error_code ignored;
  if (fs::exists(index, ignored)) {
    HAULWAY_ASSIGN(const auto source, OpenFileSource(index));
    HAULWAY_ASSIGN(ShardedIndex read, ReadShardedIndex(*source, {}));
    for (const std::string& file : read.files) {
      if (file.find('/') == file.npos) continue;
      return Status(Code::kUnsupported,
                    fmt::format("the index names a file in another folder: {}",
                                Quote(file)))
          .Of(index);
    }
    return std::move(read.files);
  }
  HAULWAY_ASSIGN(std::vector<std::string> files, target.Files());
  std::erase_if(files, [](const std::string& name) {
    return !name.ends_with(".safetensors");
  });
  return files;
}

}  // namespace

TargetFolder::~TargetFolder() {
  // A child that was forked meanwhile has the same lock.
  if (lock_.get() >= 0) ::flock(lock_.get(), LOCK_UN);
}

std::string TargetFolder::In(std::string_view name) const {
  return fmt::format("{}/{}", path_, name);
}
std::string TargetFolder::InSync(std::string_view name) const {
  return fmt::format("{}/{}/{}", path_, kSyncFolder, name);
}
std::string TargetFolder::update() const { return InSync(kSyncUpdate); }
std::string TargetFolder::new_update() const {
  return fmt::format("{}.haulway-tmp", update());
}

Result<TargetFolder> TargetFolder::Lock(std::string path, Durability durability,
                                        const std::atomic<bool>* cancel) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  HAULWAY_TRY(MakeFolder(fmt::format("{}/{}", path, kSyncFolder)));
  const std::string name = fmt::format("{}/{}/lock", path, kSyncFolder);
  UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (fd.get() < 0) return Failed(errno, "cannot open the lock", name);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return Failed(errno, "cannot lock", name);
    }
    if (cancel != nullptr && cancel->load()) {
      return Status(Code::kCancelled,
                    "waiting for another update was cancelled")
          .Of(name);
    }
    (void)::poll(nullptr, 0, kAgainMs);
  }
  return TargetFolder(std::move(path), durability, std::move(fd));
}

Result<std::optional<std::string>> TargetFolder::Version() const {
  return ReadSyncMarker(path_);
}

Status TargetFolder::SetVersion(std::string_view version) const {
  const std::string path = InSync(kSyncMarker);
  const std::string fresh = path + ".haulway-tmp";
  std::string text = "{\"version\": \"";
  for (const char c : version) {
    if (static_cast<unsigned char>(c) < 0x20) {
      text += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  text += "\"}";
  HAULWAY_TRY(WriteWhole(fresh, text, durability_));
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return Failed(errno, "cannot rename", path);
  }
  return Sync(InSync(""));
}

Status TargetFolder::Hold(std::string_view version,
                          Durability durability) const {
  const std::string path = InSync(kSyncHeld);
  const std::string fresh = path + ".haulway-tmp";
  HAULWAY_TRY(
      WriteWhole(fresh, fmt::format("{}\n{}", BootId(), version), durability));
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return Failed(errno, "cannot rename", path);
  }
  return SyncIf(durability, InSync(""));
}

Result<std::optional<std::string>> TargetFolder::Held() const {
  const std::string path = InSync(kSyncHeld);
  HAULWAY_ASSIGN(const auto text, ReadSmallFile(path, 64 * kKiB));
  if (!text.has_value()) return std::optional<std::string>();
  const size_t end = text->find('\n');
  if (end == text->npos || text->substr(0, end) != BootId()) {
    return Status(Code::kMismatch, "the machine was started since");
  }
  return std::optional(text->substr(end + 1));
}

Status TargetFolder::Settle(std::string_view version) const {
  if (durability_ == Durability::kFull) {
    HAULWAY_ASSIGN(const std::vector<std::string> files, Files());
    for (const std::string& name : files) {
      if (!name.ends_with(".safetensors")) continue;
      HAULWAY_ASSIGN(const UniqueFd fd, OpenForReading(In(name)));
      if (RetryInterrupted([&] { return ::fsync(fd.get()); }) != 0) {
        return Failed(errno, "cannot sync the file", In(name));
      }
    }
  }
  HAULWAY_TRY(SetVersion(version));
  return Release();
}

Status TargetFolder::Release() const {
  const std::string path = InSync(kSyncHeld);
  for (const std::string& name : {path, path + ".haulway-tmp"}) {
    if (::unlink(name.c_str()) != 0 && errno != ENOENT) {
      return Failed(errno, "cannot remove", name);
    }
  }
  return Status();
}

Status TargetFolder::ForgetVersion() const {
  const std::string path = InSync(kSyncMarker);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Failed(errno, "cannot remove", path);
  }
  return Sync(InSync(""));
}

Result<std::vector<std::string>> TargetFolder::Files() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path_, error), end; !error && at != end;
       at.increment(error)) {
    std::string name = at->path().filename().native();
    std::error_code ignored;
    if (name.starts_with('.') || at->is_directory(ignored)) continue;
    names.push_back(std::move(name));
  }
  if (error) return Failed(error.value(), "cannot list the folder", path_);
  std::ranges::sort(names);
  return names;
}

Status TargetFolder::BeginUpdate() const {
  HAULWAY_TRY(DropUpdate());
  return MakeFolder(new_update());
}

Status TargetFolder::CommitUpdate(Durability durability) const {
  const std::string from = new_update();
  const std::string to = update();
  HAULWAY_TRY(SyncIf(durability, from));
  if (::rename(from.c_str(), to.c_str()) != 0) {
    // The other one must be there until this one is.
    if ((errno != ENOTEMPTY && errno != EEXIST) ||
        ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                    RENAME_EXCHANGE) != 0) {
      return Failed(errno, "cannot rename", to);
    }
    HAULWAY_TRY(DropUpdate());
  }
  return SyncIf(durability, InSync(""));
}

Status TargetFolder::DropUpdate() const {
  std::error_code error;
  fs::remove_all(new_update(), error);
  if (!error) return Status();
  return Failed(error.value(), "cannot remove", new_update());
}

Status TargetFolder::EndUpdate() const {
  HAULWAY_TRY(DropUpdate());
  // Without its name, it counts no more, even if removing it is interrupted.
  if (::rename(update().c_str(), new_update().c_str()) == 0) {
    return DropUpdate();
  }
  if (errno == ENOENT) return Status();
  return Failed(errno, "cannot rename", update());
}

Status TargetFolder::WriteLines(std::string_view name,
                                const std::vector<std::string>& lines) const {
  std::string text;
  for (const std::string& line : lines) {
    if (line.find('\n') != line.npos) {
      return Status(Code::kUnsupported,
                    fmt::format("{} has several lines", Quote(line)));
    }
    text += line + '\n';
  }
  return WriteWhole(fmt::format("{}/{}", new_update(), name), text,
                    durability_);
}

Result<std::vector<std::string>> TargetFolder::ReadLines(
    std::string_view name) const {
  const std::string path = fmt::format("{}/{}", update(), name);
  HAULWAY_ASSIGN(const UniqueFd fd, OpenForReading(path));
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  std::string text(size, '\0');
  HAULWAY_TRY(ReadFully(fd.get(), 0, std::as_writable_bytes(std::span(text))));
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

Status TargetFolder::Sync(const std::string& folder) const {
  return SyncIf(durability_, folder);
}

Result<TargetTensors> FindTargetTensors(const TargetFolder& target) {
  TargetTensors found;
  HAULWAY_ASSIGN(found.files, WeightFiles(target));
  for (uint32_t f = 0; f < found.files.size(); ++f) {
    const std::string path = target.In(found.files[f]);
    HAULWAY_ASSIGN(auto source, OpenFileSource(path));
    auto reader = safetensors::OpenSafetensors(std::move(source), {});
    if (!reader.ok()) return std::move(reader).status().Of(path);
    const CheckpointIndex& index = (*reader)->index();
    for (const Entry& entry : index.entries) {
      const TensorInfo& tensor = index.tensors[entry.tensor];
      TargetTensor place{f, 0, tensor.nbytes};
      if (tensor.storage != kNoStorage) {
        place.offset = index.storages[tensor.storage].offset +
                       tensor.storage_offset * ItemBytes(tensor.dtype);
      }
      if (found.tensors.emplace(entry.name, place).second) continue;
      return Status(Code::kMismatch,
                    fmt::format("two files of the folder have tensor {}",
                                Quote(entry.name)))
          .Of(path);
    }
  }
  return found;
}

}  // namespace haulway
