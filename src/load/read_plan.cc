#include "load/read_plan.h"

#include <algorithm>
#include <numeric>

#include "base/page_bytes.h"
#include "decode/encoding_traits.h"
#include "haulway/options.h"
#include "io/join_ranges.h"

namespace haulway {

namespace {

// Alignment of tensors in memory: a cache line, the widest vector register, and
// PyTorch's own alignment of records in a file.
constexpr uint64_t kAlignment = 64;
// Most requests per job, so that many tiny requests are spread over the
// threads.
constexpr uint32_t kMostRequests = 64;

Route RouteOf(const WantedStorage& wanted) {
  if (TraitsOf(*wanted.info).needs_memory()) return Route::kStaged;
  return wanted.alone ? Route::kAlone : Route::kJoined;
}

// Returns the first address at or after `at` that is `phase` modulo `multiple`.
uint64_t NextWithPhase(uint64_t at, uint64_t phase, uint64_t multiple) {
  return at + (phase % multiple + multiple - at % multiple) % multiple;
}

// Returns the memory offset, at or after `at`, for the frame of a storage.
uint64_t PlaceFrame(uint64_t at, const StorageInfo& storage) {
  const uint64_t length = storage.frame_end - storage.frame_offset;
  const uint64_t before = storage.offset - storage.frame_offset;
  if (storage.offset % storage.alignment() != 0) {
    return NextWithPhase(at, kAlignment - before % kAlignment, kAlignment);
  }
  return NextWithPhase(at, storage.frame_offset,
                       length >= kSmallestPhased ? kPageBytes : kAlignment);
}

// Returns whether a storage may be added to an extent. Within an extent,
// offsets in memory and in the source differ by a constant.
bool Joins(const Extent& extent, const StorageInfo& storage,
           uint64_t largest_hole) {
  if (storage.frame_offset < extent.source_offset + extent.length) {
    // The range belongs to another storage's frame. Decoding needs a copy of
    // its own.
    return IsAsInMemory(storage);
  }
  ByteRange read = {extent.source_offset, extent.length};
  if (!JoinRanges(
          &read,
          {storage.frame_offset, storage.frame_end - storage.frame_offset},
          {.largest_hole = largest_hole})) {
    return false;
  }
  const uint64_t payload =
      extent.memory_offset + (storage.offset - extent.source_offset);
  return payload % storage.alignment() == 0;
}

}  // namespace

Result<ReadPlan> PlanReads(std::span<const WantedStorage> storages,
                           uint64_t largest_hole) {
  ReadPlan plan;
  plan.placements.resize(storages.size());
  plan.order.resize(storages.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  const auto frame_offset = [&](uint32_t i) {
    return storages[i].info->frame_offset;
  };
  if (!std::ranges::is_sorted(plan.order, {}, frame_offset)) {
    std::ranges::stable_sort(plan.order, {}, frame_offset);
  }

  // Memory is at most a small multiple of the source and the decoded payloads,
  // so only absurd sizes can overflow. The bound leaves ample room.
  constexpr uint64_t kMostMemory = uint64_t{1} << 62;
  uint64_t at = 0;
  // Whether the last extent is the last thing in memory.
  bool may_grow = false;
  for (const uint32_t i : plan.order) {
    const StorageInfo& storage = *storages[i].info;
    StoragePlacement& placement = plan.placements[i];
    const uint64_t length = storage.frame_end - storage.frame_offset;
    if (at > kMostMemory || length > kMostMemory ||
        storage.nbytes > kMostMemory) {
      return Status(Code::kLimit, "storages need more memory than there is");
    }
    placement.route = RouteOf(storages[i]);
    if (length == 0 && storage.nbytes == 0) {
      placement.frame = placement.payload = at;
      continue;
    }
    if (placement.route == Route::kStaged) {
      placement.payload = NextWithPhase(at, 0, kAlignment);
      at = placement.payload + storage.nbytes;
      plan.read_bytes += length;
      may_grow = false;
      continue;
    }
    if (placement.route == Route::kJoined && may_grow &&
        Joins(plan.extents.back(), storage, largest_hole)) {
      Extent& last = plan.extents.back();
      plan.read_bytes -= last.length;
      last.length =
          std::max(last.length, storage.frame_end - last.source_offset);
      plan.read_bytes += last.length;
      placement.frame =
          last.memory_offset + (storage.frame_offset - last.source_offset);
    } else {
      placement.frame = PlaceFrame(at, storage);
      plan.read_bytes += length;
      may_grow = placement.route == Route::kJoined;
      if (may_grow) {
        plan.extents.push_back({storage.frame_offset, placement.frame, length});
      }
    }
    placement.payload =
        placement.frame + (storage.offset - storage.frame_offset);
    at = std::max(at, placement.frame + length);
  }
  plan.memory_bytes = at;
  return plan;
}

RequestPlan CutRequests(std::span<const Extent> extents,
                        const RequestLimits& limits) {
  RequestPlan plan;
  const uint64_t most_gathered =
      std::min(limits.largest_request, limits.most_gathered);
  bool gathering = false;
  for (const Extent& extent : extents) {
    if (extent.length < limits.smallest_straight) {
      if (gathering) {
        PlannedRequest& last = plan.requests.back();
        ByteRange read = {last.offset, last.length};
        if (JoinRanges(&read, {extent.source_offset, extent.length},
                       {.largest_hole = limits.largest_hole,
                        .largest_read = most_gathered,
                        .may_overlap = false})) {
          last.length = read.length;
          ++last.parts;
          plan.parts.push_back(extent);
          continue;
        }
      }
      gathering = true;
    } else {
      gathering = false;
    }
    for (uint64_t done = 0; done < extent.length;) {
      const uint64_t offset = extent.source_offset + done;
      uint64_t length = extent.length - done;
      if (length > limits.largest_request) {
        // Even parts, so that none is too small to be worth a request.
        const uint64_t parts = (length - 1) / limits.largest_request + 1;
        const uint64_t even = (length - 1) / parts + 1;
        uint64_t end = NextWithPhase(offset + even, 0, kPageBytes);
        if (end - offset > limits.largest_request) end -= kPageBytes;
        length = end - offset;
      }
      plan.requests.push_back(
          {offset, length, static_cast<uint32_t>(plan.parts.size()), 1});
      plan.parts.push_back({offset, extent.memory_offset + done, length});
      done += length;
    }
  }
  for (uint32_t r = 0; r < plan.requests.size(); ++r) {
    if (plan.jobs.empty() || plan.jobs.back().bytes >= limits.job_bytes ||
        plan.jobs.back().requests >= kMostRequests) {
      plan.jobs.push_back({r, 0, 0});
    }
    ++plan.jobs.back().requests;
    plan.jobs.back().bytes += plan.requests[r].length;
  }
  return plan;
}

}  // namespace haulway
