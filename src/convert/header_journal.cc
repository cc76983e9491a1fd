#include "convert/header_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/posix.h"
#include "base/text.h"
#include "convert/patch.h"
#include "io/file_system.h"

namespace haulway::convert {

namespace {

// A journal consists of the magic, the offset and the length in 8 bytes each,
// the old bytes, the new bytes, and a CRC-32 of all that in 4 bytes. Numbers
// are little-endian.
constexpr std::string_view kMagic = "haulway-header 1";
constexpr size_t kHeadBytes = kMagic.size() + 16;
constexpr size_t kTailBytes = 4;
// A disk writes a sector completely or not at all.

// Returns `path` without symbolic links, so that a file has one journal,
// whichever link leads to it.
std::string WithoutLinks(std::string path) {
  const std::unique_ptr<char, void (*)(void*)> real(
      ::realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? std::move(path) : std::string(real.get());
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

std::string JournalOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == path.npos ? 0 : slash + 1;
  return fmt::format("{}.{}.haulway-header", path.substr(0, name),
                     path.substr(name));
}

void Append(uint64_t number, size_t bytes, std::vector<std::byte>* out) {
  for (size_t i = 0; i < bytes; ++i) {
    out->push_back(static_cast<std::byte>(number >> (8 * i) & 0xFF));
  }
}

// How much of an overwrite is in the file.
enum class Progress { kNone, kSome, kAll, kOther };

Progress ProgressOf(const Overwrite& overwrite,
                    std::span<const std::byte> found) {
  bool is_old = true;
  bool is_new = true;
  for (size_t at = 0; at < found.size();) {
    const uint64_t in_sector = (overwrite.offset + at) % kSectorBytes;
    const size_t length =
        std::min<size_t>(kSectorBytes - in_sector, found.size() - at);
    const auto is = [&](const std::vector<std::byte>& bytes) {
      return std::memcmp(found.data() + at, bytes.data() + at, length) == 0;
    };
    const bool old_sector = is(overwrite.before);
    const bool new_sector = is(overwrite.after);
    if (!old_sector && !new_sector) return Progress::kOther;
    is_old = is_old && old_sector;
    is_new = is_new && new_sector;
    at += length;
  }
  if (is_new) return Progress::kAll;
  return is_old ? Progress::kNone : Progress::kSome;
}

}  // namespace

HeaderJournal::HeaderJournal(std::string path, Durability durability)
    : path_(WithoutLinks(std::move(path))),
      journal_(JournalOf(path_)),
      durability_(durability) {}

Status HeaderJournal::Save(const Overwrite& overwrite) const {
  std::vector<std::byte> bytes;
  bytes.reserve(kHeadBytes + 2 * overwrite.before.size() + kTailBytes);
  for (const char c : kMagic) bytes.push_back(static_cast<std::byte>(c));
  Append(overwrite.offset, 8, &bytes);
  Append(overwrite.before.size(), 8, &bytes);
  bytes.insert(bytes.end(), overwrite.before.begin(), overwrite.before.end());
  bytes.insert(bytes.end(), overwrite.after.begin(), overwrite.after.end());
  Append(Crc32(0, bytes), kTailBytes, &bytes);
  FileSinkOptions options;
  options.durability = durability_;
  options.is_private = true;  // As the edited file may be.
  HAULWAY_ASSIGN(const auto sink, OpenFileSink(journal_, options));
  HAULWAY_TRY(sink->Begin(bytes.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, bytes));
  Status status = sink->Commit(bytes.size());
  // The file is not changed yet, so nothing needs a journal that may be lost.
  if (!status.ok()) (void)Remove();
  return status;
}

Status HeaderJournal::Remove() const {
  if (::unlink(journal_.c_str()) != 0 && errno != ENOENT) {
    return Status::FromErrno(errno,
                             fmt::format("cannot remove {}", Quote(journal_)));
  }
  if (durability_ == Durability::kNone) return Status();
  // If a removed journal reappears after a power failure, it is stale but
  // harmless, so errors of syncing are ignored.
  (void)SyncFolder(FolderOf(path_));
  return Status();
}

bool HeaderJournal::exists() const {
  struct stat found {};
  return ::lstat(journal_.c_str(), &found) == 0;
}

Result<std::optional<Overwrite>> HeaderJournal::Read() const {
  const std::optional<Overwrite> none;
  const UniqueFd fd(
      ::open(journal_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) {
    // EACCES: the journal of another user, who is not trusted.
    if (errno == ENOENT || errno == ELOOP || errno == EACCES) return none;
    return Status::FromErrno(
        errno, fmt::format("cannot open {}", QuotePath(journal_)));
  }
  struct stat journal {};
  struct stat file {};
  if (::fstat(fd.get(), &journal) != 0 || ::stat(path_.c_str(), &file) != 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot look at {}", Quote(journal_)));
  }
  const auto size = static_cast<uint64_t>(journal.st_size);
  // In a folder that everyone may write to, others can create files with any
  // name.
  const bool is_ours =
      journal.st_uid == ::geteuid() || journal.st_uid == file.st_uid;
  if (!S_ISREG(journal.st_mode) || !is_ours || size < kHeadBytes + kTailBytes ||
      size / 2 > static_cast<uint64_t>(file.st_size) + kHeadBytes) {
    return none;
  }
  std::vector<std::byte> bytes(size);
  HAULWAY_TRY(ReadFully(fd.get(), 0, bytes));
  ByteCursor cursor(bytes);
  if (cursor.Text(kMagic.size()) != kMagic) return none;
  Overwrite overwrite;
  overwrite.offset = cursor.U64();
  const uint64_t length = cursor.U64();
  const auto before = cursor.Bytes(length);
  const auto after = cursor.Bytes(length);
  const size_t end = cursor.position();
  const uint32_t crc = cursor.U32();
  if (!cursor.ok() || cursor.remaining() != 0 ||
      crc != Crc32(0, std::span(bytes).first(end)) ||
      !RangeFits(overwrite.offset, length,
                 static_cast<uint64_t>(file.st_size))) {
    return none;
  }
  overwrite.before.assign(before.begin(), before.end());
  overwrite.after.assign(after.begin(), after.end());
  return std::optional(std::move(overwrite));
}

Status HeaderJournal::PutBack(EditableFile* file) const {
  HAULWAY_ASSIGN(const auto overwrite, Read());
  if (!overwrite.has_value()) return Status();
  HAULWAY_ASSIGN(const UniqueFd fd, OpenForReading(path_));
  std::vector<std::byte> found(overwrite->before.size());
  HAULWAY_TRY(ReadFully(fd.get(), overwrite->offset, found));
  const Progress progress = ProgressOf(*overwrite, found);
  if (progress == Progress::kSome) {
    HAULWAY_TRY(file->WriteAt(overwrite->offset, overwrite->before));
  }
  // All of the new bytes may be in the page cache, and some on the disk.
  if (progress != Progress::kOther) HAULWAY_TRY(file->Flush());
  return Remove();
}

Status UndoInterruptedEdit(const std::string& path, Durability durability) {
  const HeaderJournal journal(path, durability);
  if (!journal.exists()) return Status();
  HAULWAY_ASSIGN(const auto file,
                 EditableFile::Open(WithoutLinks(path), durability));
  return journal.PutBack(file.get());
}

}  // namespace haulway::convert
