// Design: a local folder is written and removed under a hidden name,
// ".NAME.PID-NUMBER.haulway-tmp", beside its own, so that readers see all of it
// or nothing. The process that writes it holds a lock on it (flock), so that a
// hidden folder without a lock is the leftover of a process that died.
//
// A store has no such step, and no locks. Readers look for the index, so that
// is written last and removed first. Every file is written only if it is not
// there (If-None-Match), so that two writers cannot mix their files, and when
// the index is there, all of them must still be those that were written.

#include "versions/version_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/posix.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/version_source.h"
#include "haulway/folder.h"
#include "io/file_of_set.h"
#include "io/file_system.h"
#include "io/model_names.h"

namespace haulway {

namespace {

constexpr std::string_view kHiddenSuffix = ".haulway-tmp";
constexpr int kMostTries = 100;

Status Exists(std::string_view path) {
  return Status(Code::kInvalidArgument,
                "the folder of the version exists: versions are never changed")
      .Of(path);
}

// Returns a hidden name beside a folder.
std::string HiddenName(const std::string& path) {
  static std::atomic<uint64_t> next = 0;
  const std::string_view last = LastPart(path);
  return fmt::format("{}.{}.{}-{}{}", path.substr(0, path.size() - last.size()),
                     last, ::getpid(), next.fetch_add(1), kHiddenSuffix);
}

// Returns the folder in which `path` lies.
std::string ParentOf(const std::string& path) {
  const std::string parent =
      path.substr(0, path.size() - LastPart(path).size());
  return parent.empty() ? "." : parent;
}

// Opens a new folder and locks it, so that no sweep removes it. Returns none if
// a sweep took it for a leftover before.
UniqueFd LockedFolder(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 ||
      (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
      !LeadsTo(path, fd.get())) {
    return UniqueFd();
  }
  return fd;
}

// Sweeps a folder that need not be one of versions. On a network file system
// locks may not reach other machines, so there this does nothing.
void SweepBeside(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0 && !FileSystemOf(fd.get()).remote) {
    SweepVersionFolders(folder);
  }
}

// Renames a folder unless the new name is taken.
Status RenameFolder(const std::string& from, const std::string& to) {
#ifdef RENAME_NOREPLACE
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                  RENAME_NOREPLACE) == 0) {
    return Status();
  }
  // EINVAL: the file system cannot do it in one step.
  if (errno != EINVAL && errno != ENOSYS) {
    if (errno == EEXIST) return Exists(to);
    return Status::FromErrno(errno, "cannot rename the folder").Of(to);
  }
#endif
  std::error_code ignored;
  if (std::filesystem::exists(to, ignored)) return Exists(to);
  if (::rename(from.c_str(), to.c_str()) == 0) return Status();
  return Status::FromErrno(errno, "cannot rename the folder").Of(to);
}

class LocalFolder : public NewFolder {
 public:
  LocalFolder(std::string path, Durability durability)
      : path_(std::move(path)), durability_(durability) {}
  ~LocalFolder() override {
    std::error_code ignored;
    if (is_owner_) std::filesystem::remove_all(hidden_, ignored);
  }

  Status Begin() {
    std::error_code error;
    if (std::filesystem::exists(path_, error)) return Exists(path_);
    SweepBeside(ParentOf(path_));
    for (int i = 0; i < kMostTries; ++i) {
      hidden_ = HiddenName(path_);
      std::filesystem::create_directories(hidden_, error);
      if (error) {
        return Status::FromErrno(error.value(), "cannot make the folder")
            .Of(path_);
      }
      lock_ = LockedFolder(hidden_);
      is_owner_ = lock_.get() >= 0;
      if (is_owner_) return Status();
    }
    return Status(Code::kUnavailable,
                  "the folder of the version is removed again and again")
        .Of(path_);
  }

  Status BeginIn(std::string_view place) {
    hidden_ = place;
    std::error_code error;
    if (!std::filesystem::is_directory(hidden_, error)) {
      return Status(Code::kNotFound,
                    "the folder that another process made is not here: all "
                    "processes of the group need one file system")
          .Of(path_);
    }
    return Status();
  }

  std::string place() const override { return hidden_; }

  Result<std::unique_ptr<ByteSink>> OpenFile(const std::string& name) override {
    return OpenFileSink(fmt::format("{}/{}", hidden_, name),
                        {.durability = durability_});
  }

  Status Commit() override {
    if (!is_owner_) return Status();
    const bool is_durable = durability_ == Durability::kFull;
    if (is_durable) HAULWAY_TRY(SyncFolder(hidden_));
    HAULWAY_TRY(RenameFolder(hidden_, path_));
    if (is_durable) {
      Status synced = SyncFolder(ParentOf(path_));
      if (!synced.ok()) {
        // Only as a whole, or not at all.
        if (::rename(path_.c_str(), hidden_.c_str()) == 0) return synced;
      }
    }
    is_owner_ = false;
    return Status();
  }

 private:
  const std::string path_;
  const Durability durability_;
  std::string hidden_;
  bool is_owner_ = false;  // Whether the folder is to be removed.
  UniqueFd lock_;
};

// What is compared of a file of which a store does not say whether it is the
// same. A source keeps as much of its beginning.
constexpr size_t kComparedBytes = 512 * kKiB;

// A NotedSink is a sink that calls `noted` when it has committed.
class NotedSink : public ByteSink {
 public:
  NotedSink(std::unique_ptr<ByteSink> sink, std::function<Status()> noted)
      : sink_(std::move(sink)), noted_(std::move(noted)) {}

  std::string_view name() const override { return sink_->name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    return sink_->Begin(size);
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return sink_->WriteAt(offset, parts);
  }
  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    return sink_->CopyAt(offset, from, length);
  }
  uint64_t direct_bytes() const override { return sink_->direct_bytes(); }
  Status Prepare(uint64_t size) override { return sink_->Prepare(size); }
  Status Commit(uint64_t size) override {
    HAULWAY_TRY(sink_->Commit(size));
    return noted_();
  }

 private:
  const std::unique_ptr<ByteSink> sink_;
  const std::function<Status()> noted_;
};

class RemoteFolder : public NewFolder {
 public:
  RemoteFolder(std::string path, RemoteOptions remote)
      : path_(std::move(path)), remote_(std::move(remote)) {}
  ~RemoteFolder() override { RemoveWritten(); }

  Status Begin() const {
    HAULWAY_ASSIGN(const std::vector<std::string> files,
                   ListFolder(path_ + "/", Depth::kRecursive, remote_));
    const std::string index = fmt::format("{}/{}", path_, kVersionIndexName);
    if (std::ranges::find(files, index) != files.end()) return Exists(path_);
    // They are not removed here: their writer may be alive, and may write the
    // index between a look at the folder and the removal.
    const auto is_shard = [](const std::string& file) {
      return file.ends_with(".safetensors");
    };
    const auto shard = std::ranges::find_if(files, is_shard);
    if (shard == files.end()) return Status();
    return Status(Code::kInvalidArgument,
                  "a file of a version is here without the index: a writer "
                  "that was killed left it, or another one is at work; if none "
                  "is, remove the folder, or open a publisher for the folder "
                  "above, which removes it")
        .Of(*shard);
  }

  Status BeginIn(std::string_view) {
    is_joined_ = true;
    return Status();
  }

  std::string place() const override { return path_; }

  Result<std::unique_ptr<ByteSink>> OpenFile(const std::string& name) override {
    SinkOptions options{.remote = remote_};
    options.file.existing = Existing::kRefuse;
    const std::string file = fmt::format("{}/{}", path_, name);
    HAULWAY_ASSIGN(auto sink, OpenSink(file, options));
    return std::unique_ptr<ByteSink>(
        std::make_unique<NotedSink>(std::move(sink), [this, file]() -> Status {
          written_.push_back({file, nullptr});
          if (LastPart(file) == kVersionIndexName) return Status();
          HAULWAY_ASSIGN(written_.back().seen, Open(file));
          return Status();
        }));
  }

  Status Commit() override {
    if (!is_joined_) {
      // A publisher that is opened meanwhile takes shards without an index for
      // those of one that was killed, and removes them.
      for (const Written& one : written_) HAULWAY_TRY(CheckThere(one));
    }
    written_.clear();
    return Status();
  }

 private:
  struct Written {
    std::string file;
    // As it was written; null for the index, which nobody removes.
    std::shared_ptr<const ByteSource> seen;
  };

  Result<std::shared_ptr<const ByteSource>> Open(std::string_view file) const {
    SourceOptions options;
    options.remote = remote_;
    return OpenSource(file, options);
  }

  // Fails if a file is no longer the one that was written. A source of a store
  // refuses to read on if the object was replaced, and has kept the beginning.
  Status CheckThere(const Written& one) const {
    if (one.seen == nullptr) return Status();
    const auto same = [&]() -> Result<bool> {
      HAULWAY_ASSIGN(const auto now, Open(one.file));
      const uint64_t size = one.seen->size();
      if (now->size() != size) return false;
      std::vector<std::byte> bytes(std::min<uint64_t>(size, kComparedBytes));
      std::vector<std::byte> again(bytes.size());
      HAULWAY_TRY(one.seen->ReadAt(0, bytes));
      HAULWAY_TRY(now->ReadAt(0, again));
      if (bytes != again) return false;
      std::byte last{};
      HAULWAY_TRY(size <= bytes.size()
                      ? Status()
                      : one.seen->ReadAt(size - 1, std::span(&last, 1)));
      return true;
    };
    const auto is_same = same();
    if (is_same.ok() && *is_same) return Status();
    const Status& failed = is_same.status();
    if (IsOfSource(failed) && failed.code() != Code::kNotFound) return failed;
    return Status(Code::kUnavailable,
                  "another publisher removed or replaced a file of the version "
                  "while it was written: end one of the two")
        .Of(one.file);
  }

  // Removes the files of this object, the index first.
  void RemoveWritten() {
    while (!written_.empty()) {
      const Written one = std::move(written_.back());
      written_.pop_back();
      if (!CheckThere(one).ok()) continue;
      (void)RemoveFiles(std::span(&one.file, 1), remote_);
    }
  }

  const std::string path_;
  const RemoteOptions remote_;
  std::vector<Written> written_;
  bool is_joined_ = false;
};

// Makes the folder of a name. `begin` starts it.
template <class Begin>
Result<std::unique_ptr<NewFolder>> NewFolderOf(
    std::string_view path, const NewFolder::Options& options,
    const Begin& begin) {
  const std::optional<std::string> local = LocalPath(path);
  std::string name = local.has_value() ? *local : std::string(path);
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (local.has_value()) {
    auto folder =
        std::make_unique<LocalFolder>(std::move(name), options.durability);
    HAULWAY_TRY(begin(folder.get()));
    return std::unique_ptr<NewFolder>(std::move(folder));
  }
  if (!name.starts_with("s3://")) {
    return Status(Code::kUnsupported,
                  "versions are written to local folders and s3:// names")
        .Of(ShownName(path));
  }
  auto folder = std::make_unique<RemoteFolder>(std::move(name), options.remote);
  HAULWAY_TRY(begin(folder.get()));
  return std::unique_ptr<NewFolder>(std::move(folder));
}

// Removes a folder of a hidden name that no process has locked.
void SweepFolder(const std::string& path) {
  const UniqueFd fd(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts;
  if (fd.get() < 0 || ::fstat(fd.get(), &facts) != 0 ||
      facts.st_uid != ::geteuid() ||
      ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

Result<std::unique_ptr<NewFolder>> NewFolder::Make(std::string_view path,
                                                   const Options& options) {
  return NewFolderOf(path, options,
                     [](auto* folder) { return folder->Begin(); });
}

Result<std::unique_ptr<NewFolder>> NewFolder::Join(std::string_view path,
                                                   std::string_view place,
                                                   const Options& options) {
  return NewFolderOf(path, options,
                     [&](auto* folder) { return folder->BeginIn(place); });
}

void SweepVersionFolders(const std::string& root) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(root.c_str()),
                                                   &::closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name(entry->d_name);
    if (!name.starts_with('.') || !name.ends_with(kHiddenSuffix)) continue;
    SweepFolder(fmt::format("{}/{}", root, name));
  }
}

Status RemoveVersionFolder(const std::string& path,
                           const RemoteOptions& remote) {
  if (LocalPath(path).has_value()) {
    const std::string hidden = HiddenName(path);
    HAULWAY_TRY(RenameFolder(path, hidden));
    std::error_code error;
    std::filesystem::remove_all(hidden, error);
    if (!error) return Status();
    return Status::FromErrno(error.value(), "cannot remove the version")
        .Of(path);
  }
  HAULWAY_ASSIGN(std::vector<std::string> files,
                 ListFolder(path + "/", Depth::kRecursive, remote));
  const std::string index = fmt::format("{}/{}", path, kVersionIndexName);
  if (std::erase(files, index) != 0) {
    HAULWAY_TRY(RemoveFiles(std::span(&index, 1), remote));
  }
  return RemoveFiles(files, remote);
}

}  // namespace haulway
