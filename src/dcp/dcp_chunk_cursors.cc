#include "dcp/dcp_chunk_cursors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "dcp/dcp_archive.h"

namespace haulway::dcp {

namespace {

// A cursor has the window of a frame, mostly 2 MiB, and a buffer.
constexpr size_t kMostCursors = 32;
constexpr uint64_t kMostKeptByAll = 64 * kMiB;

}  // namespace

Status ChunkCursor::Read(uint64_t payload,
                         std::span<const ReadRequest> ranges) {
  if (!is_watched_) {
    cursor_.Watch(payload, nbytes_);
    is_watched_ = true;
  }
  // Other threads may want what comes before the first range, but hardly what
  // lies between two.
  bool keeps = true;
  for (const ReadRequest& range : ranges) {
    HAULWAY_TRY(cursor_.ReadAt(payload + range.offset, range.out, keeps));
    keeps = false;
  }
  if (is_checked_ || ranges.empty()) return Status();
  const ReadRequest& last = ranges.back();
  if (last.offset + last.out.size() < nbytes_) return Status();
  return Check(payload);
}

Status ChunkCursor::Check(uint64_t payload) {
  std::array<std::byte, kDescriptorBytes> descriptor;
  HAULWAY_TRY(cursor_.ReadAt(payload + nbytes_, descriptor));
  HAULWAY_ASSIGN(const uint32_t stated, ParseDescriptor(descriptor, nbytes_));
  HAULWAY_TRY(cursor_.ReadToEnd().status());
  const uint32_t found = cursor_.watched_crc32().value_or(~stated);
  if (found != stated) {
    return Status(Code::kMismatch,
                  fmt::format("CRC-32 of the chunk's data differs: expected "
                              "{:08x}, found {:08x}",
                              stated, found));
  }
  is_checked_ = true;
  return Status();
}

void ChunkCursors::Return(uint32_t chunk, uint64_t kept, bool is_done) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(chunk);
  if (found == held_.end()) return;
  kept_ = kept_ - found->second.kept + kept;
  found->second.kept = kept;
  found->second.used = ++uses_;
  const auto forget = [&](auto it) {
    kept_ -= it->second.kept;
    held_.erase(it);
  };
  if (is_done && kept == 0) forget(found);
  while (held_.size() > kMostCursors ||
         (kept_ > kMostKeptByAll && held_.size() > 1)) {
    forget(std::ranges::min_element(
        held_, {}, [](const auto& one) { return one.second.used; }));
  }
}

}  // namespace haulway::dcp
