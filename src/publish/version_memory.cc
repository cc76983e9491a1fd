#include "publish/version_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/memory_file.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "haulway/machine.h"
#include "haulway/options.h"

namespace haulway::publish {

namespace {

// Memory is reused if it is at most twice as large as needed, plus twice this.
constexpr uint64_t kWorstFit = 4 * kMiB;
constexpr uint64_t kTakenAtOnce = 32 * kMiB;

// A Loan holds a lock on a slot and keeps its memory mapped.
struct Loan {
  UniqueFd fd;  // Holds the lock.
  std::shared_ptr<arena::MappedRange> map;
};

}  // namespace

void VersionMemory::Recover() {
  const uint64_t newest = VersionOf(file_->header().newest.load());
  for (uint32_t i = 0; i < kSlots; ++i) {
    Slot& slot = file_->slot(i);
    // Complete, but the publisher was killed before making it visible.
    if (slot.version.load() > newest) slot.version.store(0);
  }
}

bool VersionMemory::Fits(uint32_t slot, uint64_t envelope_bytes,
                         uint64_t part_bytes) const {
  const Region& region = regions_[slot];
  const Slot& words = file_->slot(slot);
  return region.map != nullptr &&
         words.region_offset.load() == region.map->offset() &&
         words.region_bytes.load() == region.map->size() &&
         envelope_bytes <= region.front && part_bytes <= region.capacity() &&
         region.capacity() / 2 <= part_bytes + kWorstFit;
}

Result<uint32_t> VersionMemory::Take(uint64_t envelope_bytes,
                                     uint64_t part_bytes, uint64_t keep) {
  const uint64_t newest = VersionOf(file_->header().newest.load());
  std::optional<uint32_t> empty;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t version = file_->slot(i).version.load();
    if (version != 0 && version + keep > newest) continue;
    if (!LockByte(file_->fd(), i, Sharing::kAlone)) continue;
    if (Fits(i, envelope_bytes, part_bytes)) {
      if (empty.has_value()) UnlockByte(file_->fd(), *empty);
      file_->slot(i).version.store(0);
      return i;
    }
    if (!empty.has_value()) {
      empty = i;  // The slot stays locked.
      continue;
    }
    UnlockByte(file_->fd(), i);
  }
  if (!empty.has_value()) {
    return Status(Code::kLimit,
                  fmt::format("too many versions are held: expected at most {}",
                              kSlots - 1));
  }
  // No slot fits: free their memory for the new version.
  for (uint32_t i = 0; i < kSlots; ++i) {
    const Slot& slot = file_->slot(i);
    const uint64_t version = slot.version.load();
    if ((version != 0 && version + keep > newest) ||
        slot.region_bytes.load() == 0) {
      continue;
    }
    if (i != *empty && !LockByte(file_->fd(), i, Sharing::kAlone)) continue;
    regions_[i] = Region();
    file_->Empty(i);
    if (i != *empty) UnlockByte(file_->fd(), i);
  }
  file_->slot(*empty).version.store(0);
  const Status allocated = Allocate(*empty, envelope_bytes, part_bytes);
  if (!allocated.ok()) {
    regions_[*empty] = Region();
    file_->Empty(*empty);
    UnlockByte(file_->fd(), *empty);
    return allocated;
  }
  return *empty;
}

Status VersionMemory::Allocate(uint32_t slot, uint64_t envelope_bytes,
                               uint64_t part_bytes) {
  uint64_t wanted = 0;
  uint64_t front = 0;
  uint64_t parts = 0;
  uint64_t total = 0;
  uint64_t offset = 0;
  uint64_t end = 0;
  if (!CheckedAdd(envelope_bytes, part_bytes, &wanted) ||
      wanted > LookAtMachine().available_memory) {
    return NoSharedMemory(ENOMEM, "", wanted);
  }
  if (!CheckedRoundUp(std::max(envelope_bytes, kFrontBytes), kRegionAlignment,
                      &front) ||
      !CheckedRoundUp(std::max<uint64_t>(part_bytes, 1), PageBytes(), &parts) ||
      !CheckedAdd(front, parts, &total) ||
      !CheckedRoundUp(file_->size(), kRegionAlignment, &offset) ||
      !CheckedAdd(offset, total, &end) ||
      end > static_cast<uint64_t>(INT64_MAX)) {
    return NoSharedMemory(ENOMEM, "", wanted);
  }
  if (::ftruncate(file_->fd(), static_cast<off_t>(end)) != 0) {
    return NoSharedMemory(errno, "cannot size shared memory", wanted);
  }
  Slot& words = file_->slot(slot);
  words.region_offset.store(offset);
  words.region_bytes.store(total);
  HAULWAY_ASSIGN(auto map, arena::MappedRange::Map(file_->fd(), offset, total));
  const uint64_t pieces = (parts + kTakenAtOnce - 1) / kTakenAtOnce;
  HAULWAY_TRY(ParallelFor(pieces, UsableCpus(), [&](uint64_t piece) {
    const uint64_t at = front + piece * kTakenAtOnce;
    return arena::TakePages(file_->fd(), offset + at, map->data() + at,
                            std::min(kTakenAtOnce, total - at));
  }));
  regions_[slot] = {std::move(map), front, front};
  return Status();
}

void VersionMemory::Return(uint32_t slot) { UnlockByte(file_->fd(), slot); }

Result<Buffer> VersionMemory::Lend(uint32_t slot) {
  HAULWAY_ASSIGN(UniqueFd fd, Reopen(file_->fd(), /*writable=*/false));
  // Change the exclusive lock to a shared one by holding both for a moment, so
  // that no process gets the lock in between.
  if (!LockByte(file_->fd(), slot, Sharing::kShared) ||
      !LockByte(fd.get(), slot, Sharing::kShared)) {
    return Status::FromErrno(errno, "cannot lock shared memory");
  }
  UnlockByte(file_->fd(), slot);
  const Region& region = regions_[slot];
  return Buffer(std::make_shared<const Loan>(std::move(fd), region.map),
                region.parts(), /*writable=*/true);
}

Status VersionMemory::ReserveFront(uint32_t slot, uint64_t bytes) {
  Region& region = regions_[slot];
  uint64_t from = region.front - bytes;
  from -= from % PageBytes();
  if (from >= region.reserved) return Status();
  HAULWAY_TRY(arena::TakePages(file_->fd(), region.map->offset() + from,
                               region.map->data() + from,
                               region.reserved - from));
  region.reserved = from;
  return Status();
}

}  // namespace haulway::publish
