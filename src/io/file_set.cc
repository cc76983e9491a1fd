// Design: programs expect fixed names of shards, so the names of a new set are
// often those of the old one. The old files are first renamed to hidden names,
// then the new ones take theirs. So nobody finds old and new shards side by
// side, not even those who look for shards and know of no index, and if a name
// cannot be taken, the old files can be put back.
//
// Alternatives not taken: new shards that replace old ones one by one, behind
// an index that was removed before; then a killed process leaves both. Shards
// with names of their own for each save, as in directories of
// torch.distributed.checkpoint; then names are not what other programs derive.
// A lock file; where it cannot be made, there is no lock, and it stays when a
// process dies.

#include "haulway/file_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "io/file_of_set.h"
#include "io/file_system.h"
#include "io/folder_lock.h"
#include "io/temporary_file.h"

namespace haulway {

namespace {

Status Failed(std::string_view what, const std::string& path) {
  return Status::FromErrno(errno, fmt::format("{} {}", what, QuotePath(path)));
}

bool IsThere(const std::string& path) {
  struct stat facts;
  return ::lstat(path.c_str(), &facts) == 0;
}

// HiddenFiles lose their names to new ones. They get them back unless Remove()
// is called. If the process dies, the next save into the folder removes them.
class HiddenFiles {
 public:
  HiddenFiles() = default;
  HiddenFiles(const HiddenFiles&) = delete;
  HiddenFiles& operator=(const HiddenFiles&) = delete;
  ~HiddenFiles() { (void)PutBack(); }

  // Takes the name away from a file; does nothing if there is none.
  Status Hide(const std::string& path) {
    struct stat facts;
    if (::lstat(path.c_str(), &facts) != 0) {
      return errno == ENOENT ? Status() : Failed("cannot look at", path);
    }
    if (S_ISDIR(facts.st_mode)) {
      errno = EISDIR;
      return Failed("cannot replace", path);
    }
    UniqueFd lock = Lock(path);
    for (int number = 0;; ++number) {
      std::string hidden = TemporaryName(path, number);
      int result = ::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, hidden.c_str(),
                               RENAME_NOREPLACE);
      // EINVAL: the file system does not support RENAME_NOREPLACE.
      if (result != 0 && errno == EINVAL && !IsThere(hidden)) {
        result = ::rename(path.c_str(), hidden.c_str());
      }
      if (result == 0) {
        files_.push_back({path, std::move(hidden), std::move(lock)});
        return Status();
      }
      if (errno == ENOENT) return Status();
      if (errno != EEXIST && errno != EINVAL) {
        return Failed("cannot replace", path);
      }
    }
  }

  // Gives a file that a new one replaces in one step a second name, so that it
  // can be put back. Some file systems have no such names.
  void Keep(const std::string& path) {
    UniqueFd lock = Lock(path);
    for (int number = 0;; ++number) {
      std::string hidden = TemporaryName(path, number);
      if (::link(path.c_str(), hidden.c_str()) == 0) {
        files_.push_back({path, std::move(hidden), std::move(lock)});
        return;
      }
      if (errno != EEXIST) return;
    }
  }

  Status PutBack() {
    Status status;
    for (; !files_.empty(); files_.pop_back()) {
      const File& file = files_.back();
      if (::rename(file.hidden.c_str(), file.path.c_str()) != 0) {
        status = Failed("cannot put back", file.path);
        continue;
      }
      // Renaming does nothing if both are names of one file.
      ::unlink(file.hidden.c_str());
    }
    return status;
  }

  void Remove() {
    for (const File& file : files_) ::unlink(file.hidden.c_str());
    files_.clear();
  }

 private:
  struct File {
    std::string path;
    std::string hidden;
    UniqueFd lock;
  };

  // Others remove temporaries without a lock.
  static UniqueFd Lock(const std::string& path) {
    UniqueFd fd(
        ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() >= 0) (void)::flock(fd.get(), LOCK_EX | LOCK_NB);
    return fd;
  }

  std::vector<File> files_;
};

// A SetMark is a hidden file that tells readers that files of a set that no
// file opens take their names. It stays if the process dies; the next save into
// the folder removes it.
class SetMark {
 public:
  SetMark() = default;
  SetMark(const SetMark&) = delete;
  SetMark& operator=(const SetMark&) = delete;
  ~SetMark() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  Status Make(const std::string& folder) {
    for (int number = 0;; ++number) {
      std::string path =
          TemporaryName(fmt::format("{}/{}", folder, kOpenSet), number);
      fd_ = UniqueFd(::open(path.c_str(),
                            O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC,
                            S_IRUSR | S_IWUSR));
      if (fd_.get() >= 0 && LockTemporary(fd_.get())) {
        path_ = std::move(path);
        return Status();
      }
      if (fd_.get() < 0 && errno != EEXIST) return Failed("cannot make", path);
    }
  }
  // Leaves the file there.
  void Stay() { path_.clear(); }

 private:
  std::string path_;
  UniqueFd fd_;
};

}  // namespace

// A Member is a file that is committed with the others.
class FileSet::Member {
 public:
  explicit Member(std::unique_ptr<ByteSink> sink) : sink_(std::move(sink)) {}
  explicit Member(std::unique_ptr<FileOfSet> file)
      : file_(file.get()), sink_(std::move(file)) {}

  ByteSink& sink() const { return *sink_; }
  // Null if this is no local file.
  const FileOfSet* file() const { return file_; }

  void Complete(uint64_t size) { size_ = size; }
  Status Prepare() {
    if (!size_.has_value()) {
      return Status(Code::kInvalidArgument, "a file of the set is not complete")
          .Of(sink_->name());
    }
    if (std::exchange(is_prepared_, true)) return Status();
    return sink_->Prepare(*size_);
  }
  Status TakeName() {
    HAULWAY_TRY(sink_->Commit(*size_));
    is_named_ = true;
    return Status();
  }
  // Takes the file's name away again.
  void GiveUp() {
    if (file_ != nullptr && is_named_ && file_->HasName()) {
      ::unlink(file_->path().c_str());
    }
    is_named_ = false;
  }

 private:
  FileOfSet* file_ = nullptr;
  const std::unique_ptr<ByteSink> sink_;
  std::optional<uint64_t> size_;
  bool is_prepared_ = false;
  bool is_named_ = false;
};

class FileSet::LateSink : public ByteSink {
 public:
  explicit LateSink(std::shared_ptr<Member> member)
      : member_(std::move(member)), sink_(member_->sink()) {}

  std::string_view name() const override { return sink_.name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    return sink_.Begin(size);
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return sink_.WriteAt(offset, parts);
  }
  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    return sink_.CopyAt(offset, from, length);
  }
  uint64_t direct_bytes() const override { return sink_.direct_bytes(); }
  Status Commit(uint64_t size) override {
    member_->Complete(size);
    return Status();
  }

 private:
  const std::shared_ptr<Member> member_;
  ByteSink& sink_;
};

FileSet::FileSet(Durability durability) : durability_(durability) {}
FileSet::~FileSet() = default;

std::unique_ptr<ByteSink> FileSet::Add(std::shared_ptr<Member> member) {
  members_.push_back(member);
  return std::make_unique<LateSink>(std::move(member));
}

Result<std::unique_ptr<ByteSink>> FileSet::AddFile(std::string path,
                                                   FileSinkOptions options) {
  options.durability = durability_;
  HAULWAY_ASSIGN(auto file, OpenFileOfSet(std::move(path), options));
  const std::string folder = FolderOfPath(file->path());
  if (std::ranges::none_of(members_, [&](const auto& member) {
        return member->file() != nullptr &&
               FolderOfPath(member->file()->path()) == folder;
      })) {
    SweepTemporaries(file->path());
  }
  return Add(std::make_shared<Member>(std::move(file)));
}

std::unique_ptr<ByteSink> FileSet::AddSink(std::unique_ptr<ByteSink> sink) {
  return Add(std::make_shared<Member>(std::move(sink)));
}

Status FileSet::AddWritten(std::string path, std::string temporary) {
  HAULWAY_ASSIGN(auto file,
                 OpenWrittenFile(std::move(path), std::move(temporary)));
  members_.push_back(std::make_shared<Member>(std::move(file)));
  members_.back()->Complete(0);
  return Status();
}

std::vector<std::string> FileSet::TemporaryNames() const {
  std::vector<std::string> names;
  for (const auto& member : members_) {
    if (member->file() != nullptr) names.push_back(member->file()->temporary());
  }
  return names;
}

Status FileSet::Prepare() {
  for (const auto& member : members_) HAULWAY_TRY(member->Prepare());
  return Status();
}

Status FileSet::Commit(const OldFiles& old, OldGo go) {
  Status status = Prepare();
  if (members_.empty()) return status;
  if (status.ok()) {
    const bool is_alone = members_.back()->file() == nullptr && old == nullptr;
    status = is_alone ? TakeNames() : CommitAll(old, go);
  }
  // The set may live on, as in the traceback of an exception.
  if (!status.ok()) members_.clear();
  return status;
}

Status FileSet::CommitAll(const OldFiles& old, OldGo go) {
  const Member& last = *members_.back();
  const std::string path(last.file() == nullptr ? last.sink().name()
                                                : last.file()->path());
  HAULWAY_ASSIGN(const FolderLock lock, FolderLock::Take(FolderOfPath(path)));
  std::vector<std::string> others;
  if (old != nullptr) {
    HAULWAY_ASSIGN(others, old());
  }
  SetMark mark;
  if (go == OldGo::kFirst && (members_.size() > 1 || !others.empty())) {
    HAULWAY_TRY(mark.Make(FolderOfPath(path)));
    HAULWAY_TRY(SyncFolders());
  }
  HiddenFiles hidden;
  const bool is_taken = (go == OldGo::kFirst && !others.empty()) ||
                        std::ranges::any_of(members_, [&](const auto& member) {
                          return member.get() != &last &&
                                 member->file() != nullptr &&
                                 IsThere(member->file()->path());
                        });
  if (is_taken) {
    if (last.file() != nullptr) HAULWAY_TRY(hidden.Hide(path));
    for (const std::string& other : others) HAULWAY_TRY(hidden.Hide(other));
    for (const auto& member : members_) {
      if (member->file() == nullptr) continue;
      HAULWAY_TRY(hidden.Hide(member->file()->path()));
    }
    HAULWAY_TRY(SyncFolders());
  } else if (last.file() != nullptr) {
    hidden.Keep(path);
  }
  Status status = TakeNames();
  for (size_t i = 0; status.ok() && !is_taken && i < others.size(); ++i) {
    status = hidden.Hide(others[i]);
  }
  if (status.ok() && !is_taken && !others.empty()) status = SyncFolders();
  if (!status.ok()) {
    for (size_t i = members_.size(); i-- > 0;) members_[i]->GiveUp();
    const Status back = hidden.PutBack();
    if (back.ok()) return status;
    mark.Stay();
    return Status(status.code(), fmt::format("{}; the old files: {}",
                                             status.message(), back.message()));
  }
  hidden.Remove();
  for (const auto& member : members_) {
    if (member->file() == nullptr || member->file()->HasName()) continue;
    members_.back()->GiveUp();
    return Status(Code::kUnavailable,
                  fmt::format("another save into the folder wrote {} at the "
                              "same time: save again",
                              Quote(member->file()->path())));
  }
  return Status();
}

Status FileSet::TakeNames() {
  for (size_t i = members_.size(); i-- > 1;) {
    HAULWAY_TRY(members_[i - 1]->TakeName());
  }
  if (members_.size() > 1) HAULWAY_TRY(SyncFolders());
  HAULWAY_TRY(members_.back()->TakeName());
  return SyncFolders();
}

Status FileSet::SyncFolders() const {
  if (durability_ == Durability::kNone) return Status();
  std::set<std::string> folders;
  for (const auto& member : members_) {
    if (member->file() == nullptr) continue;
    folders.insert(FolderOfPath(member->file()->path()));
  }
  for (const std::string& folder : folders) HAULWAY_TRY(SyncFolder(folder));
  return Status();
}

}  // namespace haulway
