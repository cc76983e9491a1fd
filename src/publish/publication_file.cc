#include "publish/publication_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "arena/mapped_range.h"
#include "base/checked.h"
#include "base/memory_file.h"

namespace haulway::publish {

namespace {

struct flock LockOf(int64_t byte, int type) {
  struct flock lock = {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

std::string LabelOf(std::string_view name) {
  return fmt::format("{}{}", kLabel, name);
}

Status Bad(std::string_view what) {
  return Status(Code::kCorrupt, what).In("publication");
}

Status CheckHeader(const Header& header) {
  if (header.magic.load() != kMagic) return Bad("not a publication");
  if (header.layout_version != kLayoutVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("publication of version {}: expected {}",
                              header.layout_version, kLayoutVersion));
  }
  if (header.slot_count != kSlots) return Bad("unknown number of slots");
  return Status();
}

}  // namespace

bool LockByte(int fd, int64_t byte, Sharing sharing) {
  struct flock lock =
      LockOf(byte, sharing == Sharing::kAlone ? F_WRLCK : F_RDLCK);
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void UnlockByte(int fd, int64_t byte) {
  struct flock lock = LockOf(byte, F_UNLCK);
  (void)::fcntl(fd, F_OFD_SETLK, &lock);
}

bool IsLockedAlone(int fd, int64_t byte) {
  struct flock lock = LockOf(byte, F_RDLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK;
}

bool IsLocked(int fd, int64_t byte) {
  struct flock lock = LockOf(byte, F_WRLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Result<UniqueFd> Reopen(int fd, bool writable) {
  UniqueFd again(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                        (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (again.get() < 0) {
    return Status::FromErrno(errno, "cannot open shared memory again");
  }
  return again;
}

PublicationFile::PublicationFile(UniqueFd fd, void* header)
    : fd_(std::move(fd)),
      header_(static_cast<Header*>(header)),
      slots_(reinterpret_cast<Slot*>(static_cast<std::byte*>(header) +
                                     kSlotsOffset)) {}

PublicationFile::~PublicationFile() { (void)::munmap(header_, kHeaderBytes); }

Result<std::shared_ptr<PublicationFile>> PublicationFile::Map(UniqueFd fd,
                                                              bool writable) {
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* header = ::mmap(nullptr, kHeaderBytes, access, MAP_SHARED, fd.get(), 0);
  if (header == MAP_FAILED) {
    return NoSharedMemory(errno, "cannot map shared memory", kHeaderBytes);
  }
  return std::shared_ptr<PublicationFile>(
      new PublicationFile(std::move(fd), header));
}

Result<std::shared_ptr<PublicationFile>> PublicationFile::Create(
    std::string_view name) {
  HAULWAY_ASSIGN(UniqueFd fd, CreateMemoryFile(LabelOf(name)));
  // Allocate the header's pages now: later a lack of memory would raise SIGBUS.
  if (::fchmod(fd.get(), 0600) != 0 ||
      ::ftruncate(fd.get(), kRegionAlignment) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0 ||
      ::fallocate(fd.get(), 0, 0, kHeaderBytes) != 0) {
    return NoSharedMemory(errno, "cannot make shared memory", kHeaderBytes);
  }
  HAULWAY_ASSIGN(auto file, Map(std::move(fd), /*writable=*/true));
  Header& header = file->header();
  header.layout_version = kLayoutVersion;
  header.slot_count = kSlots;
  std::memcpy(header.name, name.data(),
              std::min(name.size(), sizeof(header.name) - 1));
  header.magic.store(kMagic);
  return file;
}

Result<std::shared_ptr<PublicationFile>> PublicationFile::Find(
    std::string_view name, uint32_t likely_pid, bool writable) {
  HAULWAY_ASSIGN(const UniqueFd fd, FindMemoryFile(LabelOf(name), likely_pid));
  HAULWAY_ASSIGN(auto file, Open(fd.get(), writable));
  if (file->name() != name) return Bad("publication of another name");
  return file;
}

Result<std::shared_ptr<PublicationFile>> PublicationFile::Open(int fd,
                                                               bool writable) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Bad("shared memory is not sealed against shrinking");
  }
  struct stat facts;
  if (::fstat(fd, &facts) != 0) {
    return Status::FromErrno(errno, "cannot stat shared memory");
  }
  if (static_cast<uint64_t>(facts.st_size) < kHeaderBytes) {
    return Bad("shared memory is too small");
  }
  HAULWAY_ASSIGN(UniqueFd again, Reopen(fd, writable));
  HAULWAY_ASSIGN(auto file, Map(std::move(again), writable));
  HAULWAY_TRY(CheckHeader(file->header()));
  return file;
}

std::string PublicationFile::name() const {
  return std::string(header_->name,
                     ::strnlen(header_->name, sizeof(header_->name)));
}

uint64_t PublicationFile::size() const {
  struct stat facts;
  return ::fstat(fd(), &facts) == 0 ? static_cast<uint64_t>(facts.st_size) : 0;
}

std::optional<FileRange> PublicationFile::MessageOf(uint32_t slot) const {
  const Slot& words = slots_[slot];
  const FileRange message = {words.message_offset.load(),
                             words.message_bytes.load()};
  if (message.bytes == 0 || message.offset < kRegionAlignment ||
      !RangeFits(message.offset, message.bytes, size())) {
    return std::nullopt;
  }
  return message;
}

void PublicationFile::Empty(uint32_t slot) const {
  Slot& words = slots_[slot];
  words.version.store(0);
  const uint64_t offset = words.region_offset.load();
  const uint64_t bytes = words.region_bytes.load();
  if (bytes != 0 && offset >= kRegionAlignment &&
      RangeFits(offset, bytes, size())) {
    (void)::fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  words.region_bytes.store(0);
}

void PublicationFile::Trim(bool leaves_spare) const {
  std::vector<std::pair<uint64_t, uint32_t>> retired;  // (version, slot).
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t version = slots_[i].version.load();
    if (slots_[i].region_bytes.load() != 0 && IsRetired(version)) {
      retired.emplace_back(version, i);
    }
  }
  std::ranges::sort(retired, std::greater<>());
  for (const auto& [version, i] : retired) {
    // Check without locking: a lock would make the publisher skip the slot.
    if (IsLocked(fd(), i)) continue;
    if (std::exchange(leaves_spare, false)) continue;
    if (!LockByte(fd(), i, Sharing::kAlone)) continue;
    if (IsRetired(slots_[i].version.load())) Empty(i);
    UnlockByte(fd(), i);
  }
}

std::vector<std::string> RemoveDeadNames(const NameFolder& folder,
                                         std::string_view but) {
  std::vector<std::string> removed;
  for (const std::string& name : folder.names()) {
    const uint32_t pid = folder.Read(name).value_or(0);
    if (name == but ||
        (pid != 0 &&
         ::access(fmt::format("/proc/{}", pid).c_str(), F_OK) == 0)) {
      continue;
    }
    const auto held = PublicationFile::Find(name, 0, /*writable=*/false);
    if (!held.ok() && held.status().code() == Code::kNotFound) {
      folder.Remove(name);
      removed.push_back(name);
    }
  }
  return removed;
}

}  // namespace haulway::publish
