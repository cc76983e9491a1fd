#include "io/join_ranges.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace haulway {

namespace {

// A read of the source: for the requests [first, end), which are read into
// memory of its own unless it is for a direct one.
struct Extent {
  ByteRange range;
  uint64_t wanted = 0;
  size_t first = 0;
  size_t end = 0;
  bool is_direct = false;
};

// Reads the extents, and copies their bytes to the requests.
Status ReadExtents(const ByteSource& source,
                   std::span<const ReadRequest> requests,
                   std::span<const Extent> extents, uint64_t memory_bytes) {
  if (extents.empty()) return Status();
  std::vector<std::byte> memory(memory_bytes);
  std::vector<ReadRequest> reads;
  reads.reserve(extents.size());
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.is_direct) {
      reads.push_back(requests[extent.first]);
      continue;
    }
    reads.push_back({extent.range.offset,
                     std::span(memory).subspan(at, extent.range.length)});
    at += extent.range.length;
  }
  HAULWAY_TRY(source.ReadMany(reads));
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].is_direct) continue;
    for (size_t r = extents[i].first; r < extents[i].end; ++r) {
      const ReadRequest& request = requests[r];
      std::memcpy(
          request.out.data(),
          reads[i].out.data() + (request.offset - extents[i].range.offset),
          request.out.size());
    }
  }
  return Status();
}

// Extends a read to the next request if one read for both is better than two.
bool Extend(const ByteRange& next, const JoinedReads& how, Extent* extent) {
  ByteRange read = extent->range;
  if (!JoinRanges(&read, next, how.limits)) return false;
  const bool has_hole =
      next.offset > extent->range.offset + extent->range.length;
  if (how.limits_waste && has_hole &&
      read.length > 2 * (extent->wanted + next.length)) {
    return false;
  }
  extent->range = read;
  extent->wanted += next.length;
  return true;
}

}  // namespace

uint64_t LargestHole(const SourceTraits& traits, uint64_t asked) {
  if (traits.gathers) return traits.free_hole;
  return traits.is_server() ? std::max(asked, kServerHole) : asked;
}

bool JoinRanges(ByteRange* read, const ByteRange& next,
                const JoinLimits& limits) {
  const uint64_t end = read->offset + read->length;
  if (next.offset < end && !limits.may_overlap) return false;
  if (next.offset > end && next.offset - end > limits.largest_hole) {
    return false;
  }
  const uint64_t length =
      std::max(end, next.offset + next.length) - read->offset;
  if (length > limits.largest_read) return false;
  read->length = length;
  return true;
}

Status ReadJoined(const ByteSource& source, std::vector<ReadRequest> requests,
                  const JoinedReads& how) {
  std::erase_if(requests,
                [](const ReadRequest& one) { return one.out.empty(); });
  if (!std::ranges::is_sorted(requests, {}, &ReadRequest::offset)) {
    std::ranges::stable_sort(requests, {}, &ReadRequest::offset);
  }
  std::vector<Extent> extents;
  uint64_t memory_bytes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ByteRange range{requests[i].offset, requests[i].out.size()};
    const bool is_direct = range.length >= how.direct_from;
    if (!is_direct && !extents.empty() && !extents.back().is_direct) {
      Extent& last = extents.back();
      const uint64_t before = last.range.length;
      if (Extend(range, how, &last)) {
        last.end = i + 1;
        memory_bytes += last.range.length - before;
        continue;
      }
    }
    if (memory_bytes >= how.most_memory) {
      HAULWAY_TRY(ReadExtents(source, requests, extents, memory_bytes));
      extents.clear();
      memory_bytes = 0;
    }
    extents.push_back({range, range.length, i, i + 1, is_direct});
    if (!is_direct) memory_bytes += range.length;
  }
  return ReadExtents(source, requests, extents, memory_bytes);
}

}  // namespace haulway
