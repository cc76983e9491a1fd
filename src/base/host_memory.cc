#include "base/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/checked.h"
#include "base/fresh_memory.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "haulway/machine.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// Freeing fewer bytes early is not worth a system call.
constexpr uint64_t kReclaimBytes = 1 * kMiB;

}  // namespace

Result<std::vector<Buffer>> CopyToBuffers(
    std::span<const std::span<const std::byte>> parts, int threads) {
  constexpr uint64_t kPieceBytes =
      FreshMemory::kUnitBytes;  // Populated by one thread.
  std::vector<uint64_t> offsets;
  offsets.reserve(parts.size());
  uint64_t bytes = 0;
  for (const auto part : parts) {
    offsets.push_back(bytes);
    if (!CheckedAdd(bytes, part.size(), &bytes) ||
        !CheckedRoundUp(bytes, 64, &bytes)) {
      return Status(Code::kLimit, "copies of more than 2^64 bytes");
    }
  }
  HAULWAY_ASSIGN(FreshMemory memory, FreshMemory::Allocate(bytes));
  const std::span<std::byte> all = memory.buffer().mutable_bytes();
  const uint64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const int used = threads > 0 ? threads : UsableCpus();
  HAULWAY_TRY(ParallelFor(pieces, used, [&](uint64_t piece) {
    const uint64_t begin = piece * kPieceBytes;
    const uint64_t end = std::min(begin + kPieceBytes, bytes);
    memory.BringIn(all.subspan(begin, end - begin));
    const auto after = std::ranges::upper_bound(offsets, begin);
    for (auto i = static_cast<size_t>(after - offsets.begin()) - 1;
         i < parts.size() && offsets[i] < end; ++i) {
      const uint64_t from = std::max(begin, offsets[i]);
      const uint64_t to = std::min(end, offsets[i] + parts[i].size());
      if (from >= to) continue;
      std::memcpy(all.data() + from, parts[i].data() + (from - offsets[i]),
                  to - from);
    }
    return Status();
  }));
  std::vector<Buffer> buffers;
  buffers.reserve(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    buffers.push_back(memory.buffer().Slice(offsets[i], parts[i].size()));
  }
  return buffers;
}

std::span<std::byte> WholePages(std::span<std::byte> bytes) {
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t page = PageBytes();
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + bytes.size()) / page * page;
  if (begin >= end) return {};
  return bytes.subspan(begin - first, end - begin);
}

void GiveBack(std::span<std::byte> pages) {
  if (!pages.empty()) {
    (void)::madvise(pages.data(), pages.size(), MADV_DONTNEED);
  }
}

Buffer ReclaimableSlice(const Buffer& memory, uint64_t offset,
                        uint64_t length) {
  Buffer slice = memory.Slice(offset, length);
  if (length < kReclaimBytes) return slice;
  const std::span<std::byte> bytes = slice.mutable_bytes();
  const auto reclaim = [bytes, owner = memory.owner()](std::byte*) {
    GiveBack(WholePages(bytes));
  };
  std::shared_ptr<const void> owner(bytes.data(), reclaim);
  return Buffer(std::move(owner), bytes, true);
}

}  // namespace haulway
