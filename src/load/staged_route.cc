#include "load/staged_route.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "decode/storage_decoder.h"
#include "io/join_ranges.h"

namespace haulway {

void StagedRoute::Add(uint32_t position) {
  const StorageInfo& info = load_.ToRead(load_.plan.order[position]);
  const ByteRange frame = {info.frame_offset,
                           info.frame_end - info.frame_offset};
  if (!runs_.empty()) {
    Neighbours& last = runs_.back();
    ByteRange read = {last.offset, last.length};
    if (last.first + last.count == position &&
        JoinRanges(&read, frame,
                   {.largest_hole = load_.choice.largest_hole,
                    .largest_read = load_.chunk_bytes,
                    .may_overlap = false})) {
      last.length = read.length;
      ++last.count;
      return;
    }
  }
  runs_.push_back({position, 1, frame.offset, frame.length});
}

// Puts the largest jobs first, so that no thread is left alone with a large one
// at the end.
void StagedRoute::Sort() {
  std::ranges::stable_sort(runs_, std::greater<>(), &Neighbours::length);
}

Status StagedRoute::Run(uint64_t job) {
  const Neighbours& run = runs_[job];
  HAULWAY_ASSIGN(const Staging::Lease lease, load_.staging.Take(run.length));
  const auto stored = lease.bytes();
  for (uint64_t done = 0; done < stored.size(); done += load_.chunk_bytes) {
    HAULWAY_TRY(load_.requests.Read(
        run.offset + done,
        stored.subspan(done,
                       std::min(load_.chunk_bytes, stored.size() - done))));
  }
  for (uint32_t o = run.first; o < run.first + run.count; ++o) {
    const uint32_t r = load_.plan.order[o];
    const StorageInfo& info = load_.ToRead(r);
    const auto frame = stored.subspan(info.frame_offset - run.offset,
                                      info.frame_end - info.frame_offset);
    const auto payload =
        load_.memory.At(load_.plan.placements[r].payload, info.nbytes);
    // Storages of zeros are not written, so they take no memory, whatever size
    // the file claims.
    const uint32_t row = load_.RowOf(r);
    if (load_.decoder.Writes(row)) load_.memory.BringIn(payload);
    HAULWAY_TRY(load_.decoder.Finish(row, SplitFrame(info, frame), payload, 1));
    load_.Give(r);
  }
  return Status();
}

}  // namespace haulway
