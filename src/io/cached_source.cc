#include "io/cached_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/page_bytes.h"
#include "base/posix.h"
#include "base/sha256.h"
#include "base/text.h"
#include "haulway/options.h"

// Design: each version of an object has one sparse file: marks first, then the
// blocks at their offsets in the object. A block is written before its mark,
// which holds its CRC-32. Nothing waits for the disk and nothing is locked,
// because a block counts only if it matches the CRC of its mark. So a killed
// process, a power failure, a failing disk and two processes that write the
// same block are all handled alike: a block that does not match is fetched
// again. A process checks a block whenever it reads the whole block, and once
// if it reads parts of it.
//
// The file name is derived from the object's name and version. A new version is
// a new file, which removes the old one. To make room, files are unlinked, the
// least recently used first; a process that has one open continues to use it.
//
// Tried instead: one file per block, which costs an open() per block and a
// folder of thousands of files; whole objects only, which caches nothing when
// each rank reads its part of a model.

namespace haulway {

namespace {

// The size of the first response of a server, so that reading an index takes no
// further request.
constexpr uint64_t kBlockBytes = 512 * kKiB;
// Limits the memory for the state of blocks, whatever size the server reports.
constexpr uint64_t kMostObjectBytes = uint64_t{1} << 40;
constexpr uint64_t kMarkBytes = 8;
constexpr std::string_view kEnding = ".haulway-cache";
// Bytes written between two calls of MakeRoom().
constexpr uint64_t kLooksForRoom = 64 * kMiB;
constexpr uint64_t kRoomShare = 8;

struct Mark {
  uint32_t crc = 0;
  uint32_t check = 0;  // Differs from a mark that was never written.

  static Mark Of(uint32_t crc) { return {crc, ~crc}; }
  bool is_set() const { return check == ~crc && (crc | check) != 0; }
};
static_assert(sizeof(Mark) == kMarkBytes);

std::string Name(std::string_view text, size_t digits) {
  Sha256 digest;
  digest.Update(std::as_bytes(std::span(text.data(), text.size())));
  return Hex(digest.Finish()).substr(0, digits);
}

Status CannotUse(const std::string& path) {
  return Status::FromErrno(
      errno, fmt::format("cannot use the cache {}", QuotePath(path)));
}

Status MakeFolder(const std::string& folder) {
  for (size_t slash = folder.find('/', 1);;
       slash = folder.find('/', slash + 1)) {
    const std::string part = folder.substr(0, slash);
    if (!part.empty() && ::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return CannotUse(folder);
    }
    if (slash == folder.npos) return Status();
  }
}

// A file of the cache in the folder.
struct Kept {
  std::string path;
  uint64_t bytes;  // Allocated on disk.
  timespec used;
};

std::vector<Kept> ListKept(const std::string& folder) {
  std::vector<Kept> found;
  DIR* const entries = ::opendir(folder.c_str());
  if (entries == nullptr) return found;
  while (const dirent* const entry = ::readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (!name.ends_with(kEnding)) continue;
    Kept one{fmt::format("{}/{}", folder, name), 0, {}};
    struct stat facts;
    if (::lstat(one.path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
      continue;
    }
    one.bytes = static_cast<uint64_t>(facts.st_blocks) * 512;
    one.used = facts.st_mtim;
    found.push_back(std::move(one));
  }
  ::closedir(entries);
  return found;
}

// Removes other versions of `object`, and then the least recently used files
// until at most `most_bytes` are left.
void MakeRoom(const std::string& folder, uint64_t most_bytes,
              const std::string& object, const std::string& path) {
  std::vector<Kept> kept = ListKept(folder);
  std::ranges::sort(kept, [](const Kept& a, const Kept& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) <
           std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  uint64_t bytes = 0;
  for (const Kept& one : kept) bytes += one.bytes;
  for (const Kept& one : kept) {
    const bool old = one.path != path && one.path.starts_with(fmt::format(
                                             "{}/{}-", folder, object));
    if (!old && bytes <= most_bytes) continue;
    if (::unlink(one.path.c_str()) == 0) bytes -= one.bytes;
  }
}

// Before Open(), or without it, nothing is cached but neighbours.
class CachedSource : public ByteSource {
 public:
  CachedSource(std::shared_ptr<const ByteSource> source, std::string key,
               const CacheOptions& options)
      : source_(std::move(source)), key_(std::move(key)), options_(options) {}
  ~CachedSource() override {
    if (written_ > 0) MakeRoom();
  }

  Status Open(std::string_view version) {
    HAULWAY_TRY(MakeFolder(options_.folder));
    checked_ = std::vector<std::atomic<bool>>((size() + kBlockBytes - 1) /
                                              kBlockBytes);
    object_ = Name(key_, 32);
    path_ =
        fmt::format("{}/{}-{}{}", options_.folder, object_,
                    Name(fmt::format("{}\n{}", size(), version), 16), kEnding);
    fd_ = UniqueFd(
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd_.get() < 0) return CannotUse(path_);
    data_offset_ = (checked_.size() * kMarkBytes + kPageBytes - 1) /
                   kPageBytes * kPageBytes;
    struct stat facts;
    if (::fstat(fd_.get(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
        ::ftruncate(fd_.get(), static_cast<off_t>(data_offset_ + size())) !=
            0) {
      return CannotUse(path_);
    }
    used_ = static_cast<uint64_t>(facts.st_blocks) * 512;
    ::futimens(fd_.get(), nullptr);  // Marks the file as recently used.
    MakeRoom();
    return Status();
  }

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }
  SourceTraits Look(std::span<const ByteRange> ranges) const override {
    return source_->Look(ranges);
  }
  std::optional<RemoteStats> remote_stats() const override {
    return source_->remote_stats();
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    return source_->View(offset, length);
  }
  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    HAULWAY_ASSIGN(auto beside, source_->OpenNeighbour(name));
    return MakeCachedSource(std::move(beside),
                            fmt::format("{}\n{}", key_, name), options_);
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany({&request, 1});
  }
  Status ReadMany(std::span<const ReadRequest> requests) const override;

 private:
  // A part of the caller's memory within one block.
  struct Piece {
    uint64_t block;
    uint64_t within;
    std::span<std::byte> out;
  };

  uint64_t LengthOf(uint64_t block) const {
    return std::min(kBlockBytes, size() - block * kBlockBytes);
  }
  bool IsWhole(const Piece& piece) const {
    return piece.out.size() == LengthOf(piece.block);
  }
  uint64_t DataAt(uint64_t block) const {
    return data_offset_ + block * kBlockBytes;
  }

  // Reads a block from the file into `out`. Returns false if the block is
  // missing or its checksum is wrong.
  bool ReadBlock(uint64_t block, std::span<std::byte> out) const {
    Mark mark;
    if (!ReadFully(fd_.get(), block * kMarkBytes,
                   std::as_writable_bytes(std::span(&mark, 1)))
             .ok() ||
        !mark.is_set() || !ReadFully(fd_.get(), DataAt(block), out).ok() ||
        Crc32(0, out) != mark.crc) {
      return false;
    }
    checked_[block].store(true, std::memory_order_release);
    return true;
  }

  bool ReadKept(const Piece& piece) const;
  void Keep(uint64_t block, std::span<const std::byte> bytes) const;
  Status Fetch(std::vector<Piece> missing) const;
  void MakeRoom() const {
    haulway::MakeRoom(options_.folder, options_.most_bytes, object_, path_);
  }

  const std::shared_ptr<const ByteSource> source_;
  const std::string key_;
  const CacheOptions options_;
  std::string object_;
  std::string path_;
  UniqueFd fd_;
  uint64_t data_offset_ = 0;
  // Blocks whose checksum this process has verified.
  mutable std::vector<std::atomic<bool>> checked_;
  mutable std::atomic<uint64_t> used_{0};     // Disk space of this object.
  mutable std::atomic<uint64_t> written_{0};  // Since the last MakeRoom().
  mutable std::atomic<bool> keeps_{true};
};

bool CachedSource::ReadKept(const Piece& piece) const {
  if (IsWhole(piece)) return ReadBlock(piece.block, piece.out);
  if (checked_[piece.block].load(std::memory_order_acquire)) {
    return ReadFully(fd_.get(), DataAt(piece.block) + piece.within, piece.out)
        .ok();
  }
  std::vector<std::byte> whole(LengthOf(piece.block));
  if (!ReadBlock(piece.block, whole)) return false;
  std::memcpy(piece.out.data(), whole.data() + piece.within, piece.out.size());
  return true;
}

void CachedSource::Keep(uint64_t block,
                        std::span<const std::byte> bytes) const {
  if (!keeps_.load(std::memory_order_relaxed)) return;
  if (used_.fetch_add(bytes.size()) + bytes.size() > options_.most_bytes) {
    used_.fetch_sub(bytes.size());
    return;
  }
  const Mark mark = Mark::Of(Crc32(0, bytes));
  const auto mark_bytes = std::as_bytes(std::span(&mark, 1));
  if (!WriteFully(fd_.get(), DataAt(block), {&bytes, 1}).ok() ||
      !WriteFully(fd_.get(), block * kMarkBytes, {&mark_bytes, 1}).ok()) {
    keeps_.store(false, std::memory_order_relaxed);  // The disk is full.
    return;
  }
  checked_[block].store(true, std::memory_order_release);
  const uint64_t often =
      std::min(kLooksForRoom, options_.most_bytes / kRoomShare);
  if (written_.fetch_add(bytes.size()) + bytes.size() >= often) {
    written_.store(0);
    MakeRoom();
  }
}

// Fetches whole blocks. Blocks that the caller wants whole are read directly
// into the caller's memory.
Status CachedSource::Fetch(std::vector<Piece> missing) const {
  std::ranges::stable_sort(missing, [](const Piece& a, const Piece& b) {
    return std::pair(a.block, a.within) < std::pair(b.block, b.within);
  });
  std::map<uint64_t, std::vector<std::byte>> apart;
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < missing.size(); ++i) {
    const Piece& piece = missing[i];
    const uint64_t offset = piece.block * kBlockBytes;
    if (i > 0 && missing[i - 1].block == piece.block) continue;
    std::span<std::byte> out = piece.out;
    if (!IsWhole(piece)) {
      out = apart.try_emplace(piece.block, LengthOf(piece.block)).first->second;
    }
    ReadRequest* const last = requests.empty() ? nullptr : &requests.back();
    if (last != nullptr && last->offset + last->out.size() == offset &&
        last->out.data() + last->out.size() == out.data()) {
      last->out = {last->out.data(), last->out.size() + out.size()};
    } else {
      requests.push_back({offset, out});
    }
  }
  HAULWAY_TRY(source_->ReadMany(requests));
  // A block that several pieces need is in the first piece, or in `apart`.
  std::span<const std::byte> block;
  for (size_t i = 0; i < missing.size(); ++i) {
    const Piece& piece = missing[i];
    if (i == 0 || missing[i - 1].block != piece.block) {
      const auto found = apart.find(piece.block);
      block = found == apart.end() ? std::span<const std::byte>(piece.out)
                                   : std::span<const std::byte>(found->second);
      Keep(piece.block, block);
    }
    if (block.data() != piece.out.data()) {
      std::memcpy(piece.out.data(), block.data() + piece.within,
                  piece.out.size());
    }
  }
  return Status();
}

Status CachedSource::ReadMany(std::span<const ReadRequest> requests) const {
  if (fd_.get() < 0) return source_->ReadMany(requests);
  std::vector<Piece> missing;
  for (ReadRequest request : requests) {
    if (request.offset > size() ||
        request.out.size() > size() - request.offset) {
      // The source reports the error.
      return source_->ReadMany(requests);
    }
    while (!request.out.empty()) {
      const uint64_t block = request.offset / kBlockBytes;
      const uint64_t within = request.offset % kBlockBytes;
      const size_t length =
          std::min<uint64_t>(LengthOf(block) - within, request.out.size());
      const Piece piece{block, within, request.out.first(length)};
      if (!ReadKept(piece)) missing.push_back(piece);
      request = {request.offset + length, request.out.subspan(length)};
    }
  }
  return missing.empty() ? Status() : Fetch(std::move(missing));
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> MakeCachedSource(
    std::shared_ptr<const ByteSource> source, std::string key,
    const CacheOptions& options) {
  const SourceTraits traits = source->Look({});
  if (!traits.is_server()) return source;
  const auto stats = source->remote_stats();
  const bool is_kept = stats.has_value() && !stats->version.empty() &&
                       !stats->version.starts_with("W/") &&
                       source->size() <= kMostObjectBytes &&
                       !source->View(0, source->size()).has_value();
  auto cached = std::make_shared<CachedSource>(std::move(source),
                                               std::move(key), options);
  if (is_kept) HAULWAY_TRY(cached->Open(stats->version));
  return std::shared_ptr<const ByteSource>(std::move(cached));
}

}  // namespace haulway
