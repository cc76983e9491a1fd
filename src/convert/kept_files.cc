// Design: the files of a set get their names at once, when all are written
// (haulway/file_set.h). So files of an unfinished set wait under a hidden name,
// and FileSet takes them from there. A line of the journal is written when the
// file it names is whole; a torn last line is no line.
//
// Files are written in a fixed order, so what is kept is the beginning of that
// order. Another source, or other options, plan other files, and are refused:
// a set must not be of two.
//
// Alternative not taken: files that take their names one by one, with the index
// last. A folder would hold shards of two models until then.

#include "convert/kept_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "haulway/options.h"
#include "io/file_of_set.h"
#include "io/file_system.h"
#include "save/digested_sink.h"

namespace haulway::convert {

namespace {

constexpr std::string_view kFolderName = ".haulway-convert/";
constexpr std::string_view kJournalName = "journal";
constexpr uint64_t kMostJournal = 64 * kMiB;
constexpr uint64_t kReadBytes = kMiB;

std::string HiddenFolder(const std::string& folder) {
  return fmt::format("{}{}{}", folder, folder.ends_with('/') ? "" : "/",
                     kFolderName);
}

Status Failed(std::string_view what, const std::string& path) {
  return Status::FromErrno(errno, fmt::format("{} {}", what, QuotePath(path)));
}

// Opens the journal in a hidden folder of this user, which nobody else uses,
// and locks it. A link is no such folder: it may lead to files of others.
Result<UniqueFd> OpenJournal(const std::string& hidden, int flags) {
  struct stat facts;
  const std::string name = hidden.substr(0, hidden.size() - 1);
  if (::lstat(name.c_str(), &facts) != 0) return Failed("cannot look at", name);
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid()) {
    return Status(Code::kPermissionDenied,
                  "it is no folder of this user: remove it, or convert into "
                  "another folder")
        .Of(name);
  }
  const std::string path = hidden + std::string(kJournalName);
  for (;;) {
    UniqueFd fd(::open(path.c_str(), flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC,
                       S_IRUSR | S_IWUSR));
    if (fd.get() < 0) return Failed("cannot open", path);
    if (::fstat(fd.get(), &facts) != 0) return Failed("cannot look at", path);
    if (!S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid()) {
      return Status(Code::kPermissionDenied,
                    "it belongs to another user: remove it, or convert into "
                    "another folder")
          .Of(path);
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return Status(Code::kUnavailable,
                    "another process converts into the folder: wait until it "
                    "has ended")
          .Of(hidden);
    }
    // Another process may have removed it before it was locked.
    if (LeadsTo(path, fd.get())) return fd;
  }
}

// Removes all files in a hidden folder, and the folder.
void RemoveFolder(const std::string& hidden) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(hidden.c_str()),
                                                   &::closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    // The journal goes last: its lock keeps others out.
    if (entry->d_name == kJournalName) continue;
    ::unlinkat(::dirfd(folder.get()), entry->d_name, 0);
  }
  ::unlinkat(::dirfd(folder.get()), kJournalName.data(), 0);
  ::rmdir(hidden.c_str());
}

// Takes the text before the next space away from `line`.
std::string_view TakeWord(std::string_view* line) {
  const size_t space = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, space);
  line->remove_prefix(std::min(space + 1, line->size()));
  return word;
}

}  // namespace

Result<std::unique_ptr<KeptFiles>> KeptFiles::Open(const std::string& folder,
                                                   Durability durability) {
  std::string hidden = HiddenFolder(folder);
  if (::mkdir(hidden.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return Failed("cannot create the folder", hidden);
  }
  HAULWAY_ASSIGN(UniqueFd journal, OpenJournal(hidden, O_CREAT));
  if (durability == Durability::kFull) {
    HAULWAY_TRY(SyncFolder(hidden));
    HAULWAY_TRY(SyncFolder(folder));
  }
  std::unique_ptr<KeptFiles> kept(
      new KeptFiles(std::move(hidden), std::move(journal), durability));
  HAULWAY_TRY(kept->ReadJournal());
  return kept;
}

void KeptFiles::Remove(const std::string& folder) {
  const std::string hidden = HiddenFolder(folder);
  const auto journal = OpenJournal(hidden, 0);
  if (journal.ok()) RemoveFolder(hidden);
}

Status KeptFiles::ReadJournal() {
  const std::string path = PathOf(kJournalName);
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(journal_.get(), path));
  if (size > kMostJournal) {
    return Status(Code::kCorrupt, "it is no journal of a conversion").Of(path);
  }
  std::string text(size, '\0');
  HAULWAY_TRY(
      ReadFully(journal_.get(), 0, std::as_writable_bytes(std::span(text))));
  uint64_t at = 0;
  for (size_t end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    std::string_view line(text.data() + at, end - at);
    Entry entry;
    entry.digest = TakeWord(&line);
    entry.plan = TakeWord(&line);
    const std::string_view bytes = TakeWord(&line);
    const auto parsed =
        std::from_chars(bytes.data(), bytes.data() + bytes.size(), entry.bytes);
    if (bytes.empty() || parsed.ptr != bytes.data() + bytes.size() ||
        line.empty()) {
      break;
    }
    entry.name = line;
    entry.end = end + 1;
    entries_.push_back(std::move(entry));
  }
  return Forget(entries_.size());
}

Status KeptFiles::Forget(size_t count) {
  entries_.resize(count);
  const uint64_t end = entries_.empty() ? 0 : entries_.back().end;
  if (::ftruncate(journal_.get(), static_cast<off_t>(end)) == 0) {
    return Status();
  }
  return Failed("cannot write", PathOf(kJournalName));
}

Result<bool> KeptFiles::HasNext(const std::string& name,
                                const Sha256Value& plan,
                                const std::atomic<bool>* cancel) {
  if (next_ == entries_.size()) return false;
  const Entry& entry = entries_[next_];
  if (entry.name != name || entry.plan != Hex(plan)) {
    return Status(Code::kInvalidArgument,
                  "an interrupted conversion into the folder read another "
                  "checkpoint or had other options: give those again, or leave "
                  "out the option resume to start anew")
        .Of(folder_.substr(0, folder_.size() - kFolderName.size()));
  }
  HAULWAY_ASSIGN(const bool is_whole, IsWhole(entry, cancel));
  if (!is_whole) {
    HAULWAY_TRY(Forget(next_));
    return false;
  }
  ++next_;
  return true;
}

Result<bool> KeptFiles::IsWhole(const Entry& entry,
                                const std::atomic<bool>* cancel) const {
  const std::string path = PathOf(entry.name);
  const UniqueFd fd(
      ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) return false;
  const auto size = RegularFileSize(fd.get(), path);
  if (!size.ok() || *size != entry.bytes) return false;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
  Sha256 digest;
  for (uint64_t at = 0; at < entry.bytes; at += kReadBytes) {
    if (cancel != nullptr && cancel->load()) {
      return Status(Code::kCancelled, "converting was cancelled");
    }
    const std::span<std::byte> piece(memory.get(),
                                     std::min(kReadBytes, entry.bytes - at));
    HAULWAY_TRY(ReadFully(fd.get(), at, piece));
    digest.Update(piece);
  }
  return Hex(digest.Finish()) == entry.digest;
}

Result<std::unique_ptr<ByteSink>> KeptFiles::Begin(const std::string& name,
                                                   const Sha256Value& plan) {
  begun_ = {};
  begun_.plan = Hex(plan);
  begun_.name = name;
  FileSinkOptions options;
  options.durability = durability_;
  HAULWAY_ASSIGN(auto sink, OpenFileSink(PathOf(name), options));
  return MakeDigestedSink(std::move(sink),
                          [this](uint64_t bytes, const Sha256Value& sha256) {
                            begun_.bytes = bytes;
                            begun_.digest = Hex(sha256);
                          });
}

Status KeptFiles::Keep() {
  const uint64_t at = entries_.empty() ? 0 : entries_.back().end;
  const std::string line = fmt::format("{} {} {} {}\n", begun_.digest,
                                       begun_.plan, begun_.bytes, begun_.name);
  const auto bytes = std::as_bytes(std::span(line));
  HAULWAY_TRY(WriteFully(journal_.get(), at, std::span(&bytes, 1)));
  if (durability_ == Durability::kFull && ::fdatasync(journal_.get()) != 0) {
    return Failed("cannot sync", PathOf(kJournalName));
  }
  begun_.end = at + line.size();
  entries_.push_back(std::exchange(begun_, {}));
  next_ = entries_.size();
  return Status();
}

std::string KeptFiles::PathOf(std::string_view name) const {
  return folder_ + std::string(name);
}

void KeptFiles::Finish() { RemoveFolder(folder_); }

}  // namespace haulway::convert
