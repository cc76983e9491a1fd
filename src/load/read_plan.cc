#include "load/read_plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace haulway {

namespace {

// What tensors may expect of their memory: a cache line, the widest vector
// register, and PyTorch's own alignment of records in a file.
constexpr uint64_t kAlignment = 64;
// An extent starts in memory where it starts in the source, modulo a page, so
// that page-aligned payloads stay so.
constexpr uint64_t kPageBytes = 4 * kKiB;

// Whether the payload ends up where it is read to.
bool StaysInPlace(const StorageInfo& storage) {
  return storage.encoding == Encoding::kRaw ||
         storage.encoding == Encoding::kEncrypted;
}

bool StaysAligned(const StorageInfo& storage) {
  return StaysInPlace(storage) && storage.offset % kAlignment == 0;
}

// The first address from `at` that is `phase` modulo `multiple`.
uint64_t NextWithPhase(uint64_t at, uint64_t phase, uint64_t multiple) {
  return at + (phase + multiple - at % multiple) % multiple;
}

}  // namespace

Result<ReadPlan> PlanReads(std::span<const StorageInfo* const> storages,
                           uint64_t largest_hole) {
  ReadPlan plan;
  plan.placements.resize(storages.size());

  std::vector<uint32_t> order(storages.size());
  std::iota(order.begin(), order.end(), 0);
  const auto frame_offset = [&](uint32_t i) {
    return storages[i]->frame_offset;
  };
  if (!std::ranges::is_sorted(order, {}, frame_offset)) {
    std::ranges::stable_sort(order, {}, frame_offset);
  }

  // Memory is bounded by a small multiple of what the source and the decoded
  // payloads hold, so only absurd sizes can overflow: leave them ample room.
  constexpr uint64_t kMostMemory = uint64_t{1} << 62;
  uint64_t at = 0;
  bool may_grow = false;  // Whether the last extent may take a neighbour.
  for (const uint32_t i : order) {
    const StorageInfo& storage = *storages[i];
    Placement& placement = plan.placements[i];
    const uint64_t length = storage.frame_end - storage.frame_offset;
    if (at > kMostMemory || length > kMostMemory ||
        storage.nbytes > kMostMemory) {
      return Status(Code::kLimit, "storages need more memory than there is");
    }
    const bool aligned = StaysAligned(storage);
    Extent* last = plan.extents.empty() ? nullptr : &plan.extents.back();
    const bool joins = aligned && may_grow && last != nullptr &&
                       storage.frame_offset <=
                           last->source_offset + last->length + largest_hole;
    if (joins) {
      last->length =
          std::max(last->length, storage.frame_end - last->source_offset);
    } else {
      const uint64_t memory =
          aligned
              ? NextWithPhase(at, storage.frame_offset % kPageBytes, kPageBytes)
              : NextWithPhase(
                    at,
                    (kAlignment -
                     (storage.offset - storage.frame_offset) % kAlignment) %
                        kAlignment,
                    kAlignment);
      plan.extents.push_back({storage.frame_offset, memory, length});
      last = &plan.extents.back();
      may_grow = aligned;
    }
    placement.frame =
        last->memory_offset + (storage.frame_offset - last->source_offset);
    placement.payload =
        placement.frame + (storage.offset - storage.frame_offset);
    at = last->memory_offset + last->length;
    if (storage.encoding == Encoding::kDeflate) {
      placement.payload = NextWithPhase(at, 0, kAlignment);
      at = placement.payload + storage.nbytes;
    }
  }
  plan.memory_bytes = at;
  for (const Extent& extent : plan.extents) plan.read_bytes += extent.length;
  return plan;
}

}  // namespace haulway
