#include "arena/overflow.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/checked.h"
#include "base/memory_file.h"
#include "base/page_bytes.h"

namespace haulway::arena {

namespace {

// The default number of units in transit, and one that is held.
constexpr size_t kMostSpares = 4;
// Number of units without overflow after which spares are freed.
constexpr uint32_t kPatience = 64;

uint64_t FileBytes(int fd) {
  struct stat facts;
  return ::fstat(fd, &facts) == 0 ? static_cast<uint64_t>(facts.st_size) : 0;
}

}  // namespace

Overflow::Overflow(int fd, uint64_t start, uint64_t limit)
    : fd_(fd),
      // Memory of an earlier producer may still be in use.
      start_(std::max(start, FileBytes(fd))),
      limit_(limit),
      owner_(::getpid()),
      end_(start_) {}

Overflow::~Overflow() {
  // A copy made by fork() must not free the pages.
  if (owner_ != ::getpid()) return;
  while (!spares_.empty()) ReturnOldestSpare();
}

Result<std::shared_ptr<MappedRange>> Overflow::Take(uint64_t bytes) {
  passed_by_ = 0;
  uint64_t rounded = 0;
  if (!CheckedRoundUp(std::max<uint64_t>(bytes, 1),
                      bytes < kHugePage ? PageBytes() : kHugePage, &rounded) ||
      rounded > limit_) {
    return Status(Code::kLimit, fmt::format("overflow of {} bytes: at most {}",
                                            bytes, limit_));
  }
  if (Piece spare = TakeSpare(rounded)) return spare;
  while (rounded > limit_ - held_bytes_) {
    if (spares_.empty()) {
      return Status(Code::kLimit,
                    fmt::format("overflow of {} bytes: {} of {} are in use",
                                bytes, held_bytes_, limit_));
    }
    ReturnOldestSpare();
  }
  const uint64_t offset = Find(rounded);
  uint64_t end = 0;
  if (!CheckedAdd(offset, rounded, &end) ||
      end > static_cast<uint64_t>(INT64_MAX)) {
    return NoSharedMemory(EFBIG, "cannot size shared memory", bytes);
  }
  if (end > end_) {
    if (::ftruncate(fd_, static_cast<off_t>(end)) != 0) {
      return NoSharedMemory(errno, "cannot size shared memory", bytes);
    }
    end_ = end;
  }
  HAULWAY_ASSIGN(Piece piece, MappedRange::Map(fd_, offset, rounded));
  const Status taken = TakePages(fd_, offset, piece->data(), rounded);
  if (!taken.ok()) {
    (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(offset), static_cast<off_t>(rounded));
    return taken;
  }
  held_bytes_ += rounded;
  pieces_.emplace(offset, piece);
  return piece;
}

void Overflow::Give(uint64_t offset) {
  spares_.push_back(offset);
  if (spares_.size() > kMostSpares) ReturnOldestSpare();
}

void Overflow::PassBy() {
  if (spares_.empty() || ++passed_by_ < kPatience) return;
  passed_by_ = 0;
  while (!spares_.empty()) ReturnOldestSpare();
}

Overflow::Piece Overflow::TakeSpare(uint64_t bytes) {
  auto best = spares_.end();
  for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
    const uint64_t size = pieces_.at(*spare)->size();
    // Skip spares of which most would be unused. Of equals take the newest, for
    // the caches.
    if (size < bytes || size / 2 > bytes) continue;
    if (best == spares_.end() || size <= pieces_.at(*best)->size()) {
      best = spare;
    }
  }
  if (best == spares_.end()) return nullptr;
  Piece piece = pieces_.at(*best);
  spares_.erase(best);
  return piece;
}

void Overflow::ReturnOldestSpare() {
  const auto piece = pieces_.find(spares_.front());
  spares_.pop_front();
  // Also unmaps the pages from all other processes.
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(piece->first),
                    static_cast<off_t>(piece->second->size()));
  held_bytes_ -= piece->second->size();
  pieces_.erase(piece);
}

uint64_t Overflow::Find(uint64_t bytes) const {
  const auto aligned = [](uint64_t offset) {
    return (offset + kHugePage - 1) / kHugePage * kHugePage;
  };
  uint64_t at = aligned(start_);
  for (const auto& [offset, piece] : pieces_) {
    if (offset >= at && offset - at >= bytes) break;
    at = aligned(offset + piece->size());
  }
  return at;
}

}  // namespace haulway::arena
